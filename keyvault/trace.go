package keyvault

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// A trace is what one operation has seen so far. When its time is up it is all
// that is left to say why: the SDK's retry policy then returns the bare context
// error. A nil trace records nothing.
type trace struct {
	mu      sync.Mutex
	start   time.Time
	host    string
	pending bool   // an exchange is under way
	waiting string // what the call waits for before it can send: a slot, a token
	status  int    // of the last answer
	err     error  // of the last exchange that had no answer
	failure *Error // the last failure, if it is already in words
	tries   int    // exchanges begun
}

type traceKey struct{}

func withTrace(ctx context.Context) (context.Context, *trace) {
	if t := traceOf(ctx); t != nil {
		return ctx, t
	}
	t := &trace{start: time.Now()}
	return context.WithValue(ctx, traceKey{}, t), t
}

func traceOf(ctx context.Context) *trace {
	t, _ := ctx.Value(traceKey{}).(*trace)
	return t
}

func (t *trace) begin(host string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.host, t.pending, t.waiting = host, true, ""
	t.tries++
}

func (t *trace) end(status int, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending, t.status, t.err = false, status, err
	if err != nil {
		t.failure = nil
	}
}

// wait notes what the call waits for; "" when it goes on.
func (t *trace) wait(what string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = what
}

// fail keeps a failure that this package has already put in words.
func (t *trace) fail(e *Error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending, t.err, t.failure = false, nil, e
}

// A snapshot is a trace at one moment.
type snapshot struct {
	start   time.Time
	host    string
	pending bool
	waiting string
	status  int
	err     error
	failure *Error
	tries   int
}

func (t *trace) snapshot() snapshot {
	if t == nil {
		return snapshot{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return snapshot{t.start, t.host, t.pending, t.waiting, t.status, t.err, t.failure, t.tries}
}

// retryable reports whether another try may help: an answer that says "later",
// or a broken connection. A name that does not exist and a certificate that
// does not verify stay so.
func retryable(resp *http.Response, err error) bool {
	if err != nil {
		_, cause := netCause(err)
		return cause != CauseNone && cause != CauseTLS && !isNotFound(err)
	}
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
