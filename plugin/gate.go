package plugin

import (
	"net"
	"sync"
	"time"
)

const (
	// maxPending is how many connections may be open that have not yet sent the
	// HTTP/2 preface. kube-apiserver sends it at once, so one that stays silent
	// is a port scanner or a bug; without a bound such ones could use up the
	// descriptors that calls to the vault need.
	maxPending = 64
	// patience is how long a connection may take while there are more: many that
	// come at once are not silent, only many.
	patience = time.Second
	// mostPending is the bound that no burst may pass.
	mostPending = 8 * maxPending
)

// A gate knows the accepted connections that have not shown that they speak
// HTTP/2. gRPC waits for those on every stop, a hard one included, for as long
// as its handshake time-out; closing the gate ends them.
type gate struct {
	mu      sync.Mutex
	closed  bool
	pending []*gatedConn // oldest first
}

// A gatedConn leaves its gate when it is closed or has passed the handshake.
type gatedConn struct {
	net.Conn
	gate  *gate
	since time.Time
}

func (c *gatedConn) Close() error {
	c.gate.leave(c)
	return c.Conn.Close()
}

// enter admits conn, at the cost of those that have been silent longest.
func (g *gate) enter(conn net.Conn) net.Conn {
	now := time.Now()
	c := &gatedConn{Conn: conn, gate: g, since: now}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		conn.Close()
		return c
	}
	for len(g.pending) >= maxPending && (len(g.pending) >= mostPending || now.Sub(g.pending[0].since) > patience) {
		g.pending[0].Conn.Close()
		g.pending = append(g.pending[:0], g.pending[1:]...)
	}
	g.pending = append(g.pending, c)
	return c
}

func (g *gate) leave(c *gatedConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, p := range g.pending {
		if p == c {
			g.pending = append(g.pending[:i], g.pending[i+1:]...)
			return
		}
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, c := range g.pending {
		c.Conn.Close()
	}
	g.pending = nil
}

// A gatedListener sends what it accepts through a gate.
type gatedListener struct {
	net.Listener
	gate   *gate
	failed func(error) // told of each Accept that fails
}

func (l *gatedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		l.failed(err)
		return nil, err
	}
	return l.gate.enter(conn), nil
}
