package keyvault

import (
	"context"
	"net/http"
	"net/http/httptrace"
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
	pending bool          // an exchange is under way
	waiting string        // what the call waits for before it can send: a slot, a token
	why     func() *Error // says more of that; may be nil
	status  int           // of the last answer
	err     error         // of the last exchange that had no answer
	failure *Error        // the last failure, if it is already in words
	tries   int           // exchanges begun
	// resolving is the name that the exchange under way waits for; it says
	// nothing once the exchange has a connection, be it another one.
	resolving string
	connected bool
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
	t.host, t.pending, t.waiting, t.why, t.resolving, t.connected = host, true, "", nil, "", false
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

// resolve notes the name that the exchange waits for; "" when it is known.
func (t *trace) resolve(name string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.connected {
		t.resolving = name
	}
}

// connect notes that the exchange has a connection.
func (t *trace) connect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resolving, t.connected = "", true
}

// watched is ctx with word of connections to t. A nil trace wants none.
func (t *trace) watched(ctx context.Context) context.Context {
	if t == nil {
		return ctx
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { t.connect() }})
}

// wait notes what the call waits for; "" when it goes on.
func (t *trace) wait(what string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting, t.why = what, nil
}

// waitFor is wait with somebody to ask why it takes so long.
func (t *trace) waitFor(what string, why func() *Error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting, t.why = what, why
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
	why     func() *Error
	status  int
	err     error
	failure *Error
	tries   int

	resolving string
}

func (t *trace) snapshot() snapshot {
	if t == nil {
		return snapshot{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return snapshot{t.start, t.host, t.pending, t.waiting, t.why, t.status, t.err, t.failure, t.tries, t.resolving}
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
