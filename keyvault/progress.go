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
	e := &Error{Reason: CredentialsUnavailable, Cause: CauseTimeout}
	switch {
	case s.pending && s.resolving != "":
		e.Cause = CauseDNS
		e.Text = fmt.Sprintf("the resolver does not answer for %s", clean(s.resolving, 253))
	case s.pending:
		e.Text = fmt.Sprintf("no answer from %s", s.host)
	case s.err != nil:
		text, cause := netCause(s.err)
		e.Cause, e.Text = cause, fmt.Sprintf("%s: %s", s.host, text)
		return e
	case s.status >= 300:
		e.Cause, e.Status = CauseServer, s.status
		e.Text = fmt.Sprintf("%s: http %d", s.host, s.status)
	default:
		return nil
	}
	e.Text += s.before()
	return e
}
