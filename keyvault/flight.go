package keyvault

import (
	"bytes"
	"context"
	"crypto/sha256"
	"sync"
	"time"
)

// flights merges identical Decrypts that run at the same time into one call.
// When kube-apiserver starts, it asks for the same few seeds hundreds of times.
type flights struct {
	mu sync.Mutex
	m  map[flightKey]*flight // guarded by mu
}

// A flightKey is a version and the hash of a block.
type flightKey struct {
	host, name, version string
	block               [sha256.Size]byte
}

// A flight is one call and those who wait for it.
type flight struct {
	done   chan struct{}   // closed after plain and err are set
	ctx    context.Context // of the call: without the caller's cancellation
	cancel context.CancelFunc
	trace  *trace

	// Guarded by flights.mu.
	waiters int
	ended   bool
	plain   []byte
	err     error
}

// do calls fn, or waits for the call under way under the same key. Whoever waits
// leaves when its own context ends, and gets a copy of its own; the call ends
// when the last has given up. It runs to the first caller's deadline, so that
// its time is a budget like any other; who has time left then starts another.
// The first caller runs fn itself, since to hand a lone call to a goroutine and
// back costs more than all else here. One that gives up still does so until the
// call ends, for those who wait.
func (g *flights) do(ctx context.Context, key flightKey, ref Ref, fn func(context.Context) ([]byte, error)) ([]byte, error) {
	own, cancel := withBudget(ctx)
	defer cancel()
	deadline, _ := own.Deadline()
	c := &call{op: OpDecrypt, ref: ref, budget: time.Until(deadline)}
	for {
		f, first := g.join(ctx, key)
		if first {
			if !g.fly(ctx, key, f, fn) {
				// Not own: its parent's end may not have reached it yet.
				return nil, c.ended(context.WithValue(ctx, traceKey{}, f.trace))
			}
			return g.result(f)
		}
		select {
		case <-f.done:
			plain, err := g.result(f)
			if timedOut(err) && time.Until(deadline) > maxMargin {
				continue // its first caller's deadline, not ours
			}
			return plain, err
		case <-own.Done():
			g.leave(key, f, own.Err() == context.Canceled)
			return nil, c.ended(context.WithValue(own, traceKey{}, f.trace))
		}
	}
}

// join enters the flight under key. The first is to fly it.
func (g *flights) join(ctx context.Context, key flightKey) (f *flight, first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.m[key]; f != nil {
		f.waiters++
		return f, false
	}
	f = &flight{done: make(chan struct{}), waiters: 1, trace: &trace{start: time.Now()}}
	f.ctx = context.WithValue(context.WithoutCancel(ctx), traceKey{}, f.trace)
	if deadline, ok := ctx.Deadline(); ok {
		f.ctx, f.cancel = context.WithDeadline(f.ctx, deadline)
	} else {
		f.ctx, f.cancel = context.WithCancel(f.ctx)
	}
	if g.m == nil {
		g.m = map[flightKey]*flight{}
	}
	g.m[key] = f
	return f, true
}

// fly makes the call. It reports whether its caller, whose context is ctx, is
// still there at its end. One that left keeps working for those who wait.
func (g *flights) fly(ctx context.Context, key flightKey, f *flight, fn func(context.Context) ([]byte, error)) (stayed bool) {
	defer f.cancel()
	stop := context.AfterFunc(ctx, func() { g.leave(key, f, ctx.Err() == context.Canceled) })
	// Nobody may wait for ever for a call that panics.
	err := error(&Error{Op: OpDecrypt, Reason: Unknown, Text: "the call has panicked"})
	var plain []byte
	defer func() {
		stayed = stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.m[key] == f {
			delete(g.m, key)
		}
		f.ended, f.plain, f.err = true, plain, err
		if f.waiters == 0 {
			clear(plain)
		}
		close(f.done)
	}()
	plain, err = fn(f.ctx)
	return
}

// result takes the caller's copy. The last one clears what was copied from.
func (g *flights) result(f *flight) ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	plain := bytes.Clone(f.plain)
	f.waiters--
	if f.waiters == 0 {
		clear(f.plain)
	}
	return plain, f.err
}

// leave drops out of a flight. When the last has given up, the call ends at
// once. When time is up it ends by itself: then the vault was too slow, and that
// is evidence.
func (g *flights) leave(key flightKey, f *flight, gaveUp bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.waiters--
	switch {
	case f.waiters > 0:
	case f.ended:
		clear(f.plain)
	case gaveUp:
		delete(g.m, key)
		f.cancel()
	}
}

// timedOut reports whether err is that of a call whose time was up.
func timedOut(err error) bool {
	e := asError(err)
	// Not errors.Is: the time-out of a connection says that it is one too.
	return e != nil && !e.Remembered && e.Err == context.DeadlineExceeded
}
