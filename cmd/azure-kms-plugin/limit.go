package main

import (
	"net"
	"net/http"
	"sync"
)

// A limitedListener keeps no more connections open than its limit. Past it, the
// one that has waited longest for a request is closed; while all of them have
// one, the new one waits.
type limitedListener struct {
	net.Listener
	limit int

	mu      sync.Mutex
	changed *sync.Cond
	open    int
	closed  bool
	waiting map[net.Conn]uint64 // since when, as a count
	count   uint64
}

func newLimitedListener(ln net.Listener, limit int) *limitedListener {
	l := &limitedListener{Listener: ln, limit: limit, waiting: map[net.Conn]uint64{}}
	l.changed = sync.NewCond(&l.mu)
	return l
}

func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.limit && !l.closed {
		victim := l.longest()
		if victim == nil {
			l.changed.Wait()
			continue
		}
		delete(l.waiting, victim)
		l.mu.Unlock()
		victim.Close()
		l.mu.Lock()
	}
	if l.closed {
		c.Close()
		return nil, net.ErrClosed
	}
	l.open++
	return &limitedConn{Conn: c, release: sync.OnceFunc(l.release)}, nil
}

// longest is the connection that waits since the earliest moment; nil if none
// does. The caller holds mu.
func (l *limitedListener) longest() (victim net.Conn) {
	for c, since := range l.waiting {
		if victim == nil || since < l.waiting[victim] {
			victim = c
		}
	}
	return victim
}

func (l *limitedListener) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.changed.Broadcast()
}

// connState is the server's hook: it tells which connections have no request.
func (l *limitedListener) connState(c net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if state != http.StateNew && state != http.StateIdle {
		delete(l.waiting, c)
		return
	}
	l.count++
	l.waiting[c] = l.count
	l.changed.Broadcast()
}

func (l *limitedListener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
