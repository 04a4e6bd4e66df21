package plugin

import (
	"net"
	"sync"
)

// maxPending is how many connections may be open that have not yet sent the
// HTTP/2 preface. kube-apiserver sends it at once, so one that stays silent is
// a port scanner or a bug; without a bound such ones could use up the
// descriptors that calls to the vault need.
const maxPending = 64

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
	gate *gate
}

func (c *gatedConn) Close() error {
	c.gate.leave(c)
	return c.Conn.Close()
}

// enter admits conn, at the cost of the one that has been silent longest.
func (g *gate) enter(conn net.Conn) net.Conn {
	c := &gatedConn{Conn: conn, gate: g}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		conn.Close()
		return c
	}
	if len(g.pending) == maxPending {
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
	gate *gate
}

func (l *gatedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.gate.enter(conn), nil
}
