package status

import (
	"slices"
	"time"
)

// Exit statuses of every command of this project.
const (
	ExitUsable   = 0 // usable, or done
	ExitDegraded = 1 // degraded, or not yet
	ExitLost     = 2 // the key is lost or refused
	ExitUnknown  = 3 // cannot tell
	ExitUsage    = 64
)

// maxAhead is how far the clocks of two machines may be apart.
const maxAhead = 5 * time.Minute

// Stale reports whether the document says nothing about now: it is too old, was its
// plugin's last, or is from the future.
func (d *Document) Stale(now time.Time) bool {
	return d.StaleAfterSeconds <= 0 || d.Ahead(now) || now.Sub(d.ObservedTime) > time.Duration(d.StaleAfterSeconds)*time.Second
}

// Ahead reports whether the document is further in the future than clocks differ. How
// old it is cannot be told then.
func (d *Document) Ahead(now time.Time) bool { return d.ObservedTime.Sub(now) > maxAhead }

// Exit is the exit status that the document stands for at a moment. Words that are not
// known are bad news, and what is not said is not well.
func (d *Document) Exit(now time.Time) int {
	switch {
	case d.Stale(now):
		return ExitUnknown
	case d.Phase == Lost, d.Phase == Starting && d.Failure != nil && (d.Failure.Kind == "KeyState" || d.Failure.Kind == "Refusal"):
		return ExitLost
	case d.Phase == Starting, d.Phase == "":
		return ExitUnknown
	case d.Phase != Usable:
		return ExitDegraded
	case d.Incomplete():
		return ExitUnknown
	case !d.Answer.OK, d.Condition(IsDegraded).Status != False, slices.ContainsFunc(d.Alarms, Alarm.critical):
		return ExitDegraded
	}
	return ExitUsable
}

// Incomplete reports whether the document calls the key usable and leaves out what every
// plugin says then: it proves nothing.
func (d *Document) Incomplete() bool {
	return d.Phase == Usable && (d.Answer == Answer{} || d.KeyID == "" || len(d.Keys) == 0 || d.Condition(IsDegraded).Reason == notReported)
}

// critical reports whether somebody has to act now.
func (a Alarm) critical() bool { return a.Severity != Warning }
