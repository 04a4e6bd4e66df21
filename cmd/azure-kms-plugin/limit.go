package main

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// breath is how long a connection may keep us waiting before a new one takes its place.
// It is time enough for the rest of a request that has been sent, or for an answer to
// be taken; and 64 places then let six thousand connections a second in, so that even
// behind thousands of slow ones kubelet gets its turn within its second.
const breath = 10 * time.Millisecond

// writeBound is how long one write may take. Answers are small: what the kernel
// does not take by then, nobody reads.
const writeBound = 2 * time.Second

// A limitedListener keeps no more connections open than its limit. Past it, a new
// one takes the place of the one that has kept us waiting longest: for a request or
// the rest of one, or for taking an answer. Only a connection whose request is being
// worked on keeps its place; while all of them are, the new one waits. Accept is for
// one goroutine, as the server has it.
type limitedListener struct {
	net.Listener
	limit   int
	changed chan struct{} // something may have made room
	done    chan struct{} // closed by Close
	stop    func()

	mu      sync.Mutex
	open    int
	waiting *list.List // of *limitedConn, the longest first
}

func newLimitedListener(ln net.Listener, limit int) *limitedListener {
	l := &limitedListener{
		Listener: ln, limit: limit, waiting: list.New(),
		changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	l.stop = sync.OnceFunc(func() { close(l.done) })
	return l
}

func (l *limitedListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &limitedConn{Conn: accepted, l: l}
	for {
		admitted, again := l.admit(c)
		if admitted {
			return c, nil
		}
		select {
		case <-l.changed:
		case <-again:
		case <-l.done:
			accepted.Close()
			return nil, net.ErrClosed
		}
	}
}

// admit takes c in, in the place of another if there is no free one. Otherwise it
// returns when the one that waits longest has waited long enough; nil if none waits.
func (l *limitedListener) admit(c *limitedConn) (ok bool, again <-chan time.Time) {
	victim, again, ok := l.place(c)
	if victim != nil {
		victim.Conn.Close()
	}
	return ok, again
}

func (l *limitedListener) place(c *limitedConn) (victim *limitedConn, again <-chan time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.limit {
		front := l.waiting.Front()
		if front == nil {
			return nil, nil, false
		}
		victim = front.Value.(*limitedConn)
		if left := breath - time.Since(victim.since); left > 0 {
			return nil, time.After(left), false
		}
		l.release(victim)
	}
	l.open++
	return victim, nil, true
}

// wait marks c as one that keeps us waiting from now on. The caller holds mu.
func (l *limitedListener) wait(c *limitedConn) {
	if c.entry == nil && !c.released {
		c.since, c.entry = time.Now(), l.waiting.PushBack(c)
	}
}

// work marks c as one that we are busy with. The caller holds mu.
func (l *limitedListener) work(c *limitedConn) {
	if c.entry != nil {
		l.waiting.Remove(c.entry)
		c.entry = nil
	}
}

// release gives the place of c back. The caller holds mu.
func (l *limitedListener) release(c *limitedConn) {
	l.work(c)
	if !c.released {
		c.released = true
		l.open--
	}
}

// tell wakes the Accept that has found no place.
func (l *limitedListener) tell() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *limitedListener) Close() error {
	l.stop()
	return l.Listener.Close()
}

// A limitedConn keeps us waiting while a read or a write of it takes its time, and at
// no other moment: what we do in between, or are not given the processor to do, is not
// its fault.
type limitedConn struct {
	net.Conn
	l *limitedListener

	// Under the listener's lock.
	entry    *list.Element // among those that wait; nil while we are busy with it
	since    time.Time
	released bool
	heard    bool // something has come of it
	handled  bool // its handler runs; a read only looks whether the client is still there
}

// Read waits for a request. One that comes in one piece has been waited for once; one
// that comes in drops is waited for from the second on, without end.
func (c *limitedConn) Read(p []byte) (int, error) {
	first := false
	c.mark(func() {
		first = !c.heard
		c.heard = true
		if !c.handled {
			c.l.wait(c)
		}
	})
	n, err := c.Conn.Read(p)
	if first {
		c.mark(func() { c.l.work(c) })
	}
	return n, err
}

func (c *limitedConn) Close() error {
	c.l.mu.Lock()
	c.l.release(c)
	c.l.mu.Unlock()
	c.l.tell()
	return c.Conn.Close()
}

// Write waits for an answer to be taken. After the handler has ended, there is nothing
// left to do but that.
func (c *limitedConn) Write(p []byte) (int, error) {
	c.mark(func() { c.l.wait(c) })
	defer c.mark(func() {
		if c.handled {
			c.l.work(c)
		}
	})
	if err := c.SetWriteDeadline(time.Now().Add(writeBound)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *limitedConn) mark(change func()) {
	c.l.mu.Lock()
	change()
	c.l.mu.Unlock()
	c.l.tell()
}

// connKey is where the context of a request has its connection.
type connKey struct{}

// connContext is the server's hook that puts it there.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// placed marks a connection as busy while h works on its request.
func placed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(*limitedConn)
		c.mark(func() { c.handled = true; c.l.work(c) })
		defer c.mark(func() { c.handled = false })
		h.ServeHTTP(w, r)
	})
}
