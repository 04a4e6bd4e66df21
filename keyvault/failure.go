package keyvault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
)

// asError finds the *Error in a chain; nil if there is none.
func asError(err error) *Error {
	e, _ := errors.AsType[*Error](err)
	return e
}

// A call is one operation under way.
type call struct {
	op     Op
	ref    Ref
	budget time.Duration // from its start to its deadline
	// alone: nobody waits for what it brings but the breaker.
	alone bool
	// response is the last answer, kept by the SDK.
	response *http.Response
}

type callKey struct{}

// failure puts the end of an operation in words, whatever it was.
func (c *call) failure(ctx context.Context, err error) *Error {
	if ctx.Err() != nil {
		return c.ended(ctx)
	}
	if e := asError(err); e != nil {
		return e.at(c.op, c.ref)
	}
	if re, ok := errors.AsType[*azcore.ResponseError](err); ok && re.RawResponse != nil {
		if e := answerError(c.op, c.ref, re.RawResponse); e != nil {
			return e
		}
	}
	if e := netError(c.op, c.ref, err); e.Cause != CauseNone {
		return e
	}
	if c.response != nil {
		return c.odd(err)
	}
	return &Error{Op: c.op, Key: c.ref, Reason: Unknown, Text: where(c.ref) + ": the request could not be made", Err: err}
}

// odd is an answer of success that does not hold what it should.
func (c *call) odd(err error) *Error {
	e := &Error{Op: c.op, Key: c.ref, Reason: Unknown, Err: err}
	contentType := ""
	if c.response != nil {
		e.Status, e.RequestID = c.response.StatusCode, requestID(c.response)
		contentType = c.response.Header.Get("Content-Type")
	}
	e.Text = fmt.Sprintf("%s: unexpected response (%s): it does not hold a complete result", where(c.ref), httpText(e, contentType))
	return e
}

// ended says why a call has not finished by the end of its context.
func (c *call) ended(ctx context.Context) *Error {
	e := &Error{Op: c.op, Key: c.ref, Err: context.Cause(ctx)}
	if errors.Is(ctx.Err(), context.Canceled) {
		e.Reason, e.Text = Canceled, where(c.ref)+": cancelled, because the caller gave up or this process stops"
		return e
	}
	s := traceOf(ctx).snapshot()
	within := roughly(c.budget)
	e.Reason, e.Cause = Unreachable, CauseTimeout
	switch {
	case s.waiting == waitSlot:
		e.Text = fmt.Sprintf("%s: %d calls are in flight and none ended within %s", c.ref.Host, maxInFlight, within)
	case s.waiting != "":
		e.Reason = CredentialsUnavailable
		e.Text = fmt.Sprintf("no token came within %s, so %s was not asked", within, c.ref.Host)
		if s.why == nil {
			break
		}
		if delay := s.why(); delay != nil {
			e.Cause = delay.Cause
			e.Text += ": " + delay.Text
		}
	case s.pending || s.failure == nil && s.err == nil:
		silence, cause := s.silence(c.ref.Host)
		e.Cause = cause
		e.Text = fmt.Sprintf("%s: %s within %s%s", where(c.ref), silence, within, s.before())
	default:
		last := s.failure
		if last == nil {
			last = netError(c.op, c.ref, s.err)
		}
		last = last.at(c.op, c.ref)
		last.Err = e.Err
		return last
	}
	return e
}

// silence says who does not answer, while an exchange with a host is under way. The
// resolver's own time-out is longer than any caller's patience.
func (s snapshot) silence(host string) (string, Cause) {
	if s.pending && s.resolving != "" {
		return "the resolver does not answer for " + clean(s.resolving, 253), CauseDNS
	}
	return "no answer from " + host, CauseTimeout
}

// before tells what an earlier try of the same call has seen.
func (s snapshot) before() string {
	switch {
	case s.failure != nil && s.failure.Status != 0:
		return fmt.Sprintf("; the try before ended with http %d", s.failure.Status)
	case s.failure != nil:
		return "; the try before: " + s.failure.Text
	case s.err != nil:
		text, _ := netCause(s.err)
		return "; the try before: " + text
	}
	return ""
}

// roughly shows a budget without false precision.
func roughly(d time.Duration) string {
	d = max(d, 0)
	if d >= time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

// netError puts a broken exchange in words. Its Cause is empty if err is not
// one. A vault whose name does not exist is told apart: that is no outage.
func netError(op Op, ref Ref, err error) *Error {
	text, cause := netCause(err)
	e := &Error{Op: op, Key: ref, Reason: Unreachable, Cause: cause, Err: err, Text: where(ref) + ": " + text}
	if d, ok := errors.AsType[*net.DNSError](err); ok && d.IsNotFound {
		if strings.EqualFold(strings.TrimSuffix(d.Name, "."), ref.Host) {
			e.Reason = VaultNotFound
			e.Text += "; check the vault's name and the cloud, or the private DNS zone"
		} else {
			e.Cause = CauseProxy // the name is the proxy's
		}
	}
	return e
}

// at copies e for an operation on a key.
func (e *Error) at(op Op, ref Ref) *Error {
	c := *e
	c.Op, c.Key = op, ref
	return &c
}
