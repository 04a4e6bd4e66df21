package status

import "time"

// Exit statuses of every command of this project.
const (
	ExitUsable   = 0 // usable, or done
	ExitDegraded = 1 // degraded, or not yet
	ExitLost     = 2 // the key is lost or refused
	ExitUnknown  = 3 // cannot tell
	ExitUsage    = 64
)

// Stale reports whether the document is too old to say anything about now, or was its
// plugin's last. One from the future is not: clocks differ.
func (d *Document) Stale(now time.Time) bool {
	return d.StaleAfterSeconds == 0 || now.Sub(d.ObservedTime) > time.Duration(d.StaleAfterSeconds)*time.Second
}

// Exit is the exit status that the document stands for at a moment.
func (d *Document) Exit(now time.Time) int {
	switch {
	case d.Stale(now):
		return ExitUnknown
	case d.Phase == Lost, d.Phase == Starting && d.Failure != nil && (d.Failure.Kind == "KeyState" || d.Failure.Kind == "Refusal"):
		return ExitLost
	case d.Phase == Starting:
		return ExitUnknown
	case d.Phase != Usable, len(d.Alarms) > 0 && d.Alarms[0].Severity == Critical:
		return ExitDegraded
	}
	return ExitUsable
}
