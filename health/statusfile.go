package health

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"azure-kms-plugin/health/status"
)

const (
	// lookInterval is how soon a change is in the status file.
	lookInterval = time.Second
	// rewriteInterval is how often the file is written when nothing changes, thrice
	// within the time after which it is stale.
	rewriteInterval = 30 * time.Second
	// lastWrite bounds how long the end of a process waits for a disk that does not answer.
	lastWrite = 2 * time.Second
)

// StatusFileMode lets the group read: whoever watches a node need not be root.
const StatusFileMode = 0o640

// StatusFileConfig configures a StatusFile. Path and Status are required.
type StatusFileConfig struct {
	Path   string
	Status func() *status.Document // from memory
	Logger *zap.Logger             // nil for none
}

// A StatusFile keeps the status document in a file, for those who cannot ask the
// process: the API server is down, or the port is off. It is replaced in one step, so
// a reader sees one document or the next, and it outlives the process: its observedTime
// says how old it is.
type StatusFile struct {
	cfg     StatusFileConfig
	written time.Time // when the document in the file was made; zero if there is none of ours
	news    string    // what it tells
	faulty  bool      // the last write failed, and that was said
}

// NewStatusFile makes a StatusFile, which does nothing before Run.
func NewStatusFile(cfg StatusFileConfig) *StatusFile {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &StatusFile{cfg: cfg}
}

// Run writes the file at once, within a second of every change, and every half minute
// besides, until ctx ends; then once more, as one that no longer holds. A disk that does
// not answer holds up nobody: not even the end.
func (f *StatusFile) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		look := time.NewTicker(lookInterval)
		defer look.Stop()
		for {
			f.look(false)
			select {
			case <-look.C:
			case <-ctx.Done():
				f.look(true)
				return
			}
		}
	}()
	<-ctx.Done()
	select {
	case <-done:
	case <-time.After(lastWrite):
	}
	return nil
}

// look writes the document if it says something new, or the file is getting old, or
// this is the last time: then it says of itself that it no longer holds.
func (f *StatusFile) look(last bool) {
	d := f.cfg.Status()
	if last {
		d.StaleAfterSeconds = 0
	}
	told := news(d)
	if !last && !f.written.IsZero() && told == f.news && d.ObservedTime.Sub(f.written).Abs() < rewriteInterval {
		return
	}
	data, err := document(d)
	if err == nil {
		err = replaceFile(f.cfg.Path, data, StatusFileMode)
	}
	if err != nil {
		if !f.faulty {
			f.cfg.Logger.Warn("status file not written: what it says grows old", zap.String("path", f.cfg.Path), zap.Error(err))
		}
		f.faulty = true
		return
	}
	if f.faulty {
		f.cfg.Logger.Info("status file is written again", zap.String("path", f.cfg.Path))
	}
	f.written, f.news, f.faulty = d.ObservedTime, told, false
}

// news is what a document tells, without what changes all the time: when things were
// last done, and how often. Two documents with the same news tell the same story.
func news(d *status.Document) string {
	var b strings.Builder
	fmt.Fprintln(&b, d.Phase, d.Answer.OK, d.KeyID)
	if f := d.Failure; f != nil {
		fmt.Fprintln(&b, f.Reason, f.Cause, f.Kind)
	}
	for _, c := range d.Conditions {
		fmt.Fprintln(&b, c.Type, c.Status, c.Reason)
	}
	for _, a := range d.Alarms {
		fmt.Fprintln(&b, a.Severity, a.Reason, a.Version)
	}
	for _, k := range d.Keys {
		fmt.Fprintln(&b, k.Version, k.Role, k.Reason, k.Enabled != nil, k.Enabled != nil && *k.Enabled)
	}
	if r := d.Rotation; r != nil {
		fmt.Fprintln(&b, r.From, r.To, r.State)
	}
	return b.String()
}
