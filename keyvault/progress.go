package keyvault

import (
	"context"
	"fmt"
	"sync/atomic"
)

// A progress shows, from outside, how far a fetch of a token is. Who waits for one
// has less patience than it has time.
type progress struct {
	trace atomic.Pointer[trace] // of the sign-in under way; nil before the first
}

type progressKey struct{}

// show makes t what the progress in ctx shows; without one it does nothing.
func (t *trace) show(ctx context.Context) {
	if p, _ := ctx.Value(progressKey{}).(*progress); p != nil {
		p.trace.Store(t)
	}
}

// failure says what the sign-in waits for, or what its last try has met; nil while
// that cannot be told.
func (p *progress) failure() *Error {
	t := p.trace.Load()
	if t == nil {
		return nil
	}
	s := t.snapshot()
	e := &Error{Reason: CredentialsUnavailable, Cause: CauseServer}
	switch {
	case s.pending:
		e.Text, e.Cause = s.silence(s.host)
		e.Text += s.before()
	case s.err != nil:
		e.Text, e.Cause = netCause(s.err)
		e.Text = s.host + ": " + e.Text
	case s.status >= 300:
		e.Text = fmt.Sprintf("%s: http %d", s.host, s.status)
	default:
		return nil
	}
	return e
}
