package vault

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A gate is a listener that can be made to refuse or to swallow everything,
// and that knows its connections. It is safe for concurrent use.
type gate struct {
	addr *net.TCPAddr
	plan func() *plan

	mu      sync.Mutex
	changed *sync.Cond       // on the four below
	ln      *net.TCPListener // nil while refused
	paused  bool
	closed  bool
	hold    *placeholder // keeps the port while refused
	filler  net.Conn     // fills the backlog while paused
	conns   map[*conn]struct{}
	resets  map[string]struct{} // remote addresses of connections that were reset
}

func openGate(addr string, current func() *plan) (*gate, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	g := &gate{ln: ln.(*net.TCPListener), addr: ln.Addr().(*net.TCPAddr), plan: current, conns: map[*conn]struct{}{}, resets: map[string]struct{}{}}
	g.changed = sync.NewCond(&g.mu)
	return g, nil
}

// Addr and Accept make a gate a net.Listener.
func (g *gate) Addr() net.Addr { return g.addr }

// Accept waits for a connection, through refusals and pauses.
func (g *gate) Accept() (net.Conn, error) {
	for {
		g.mu.Lock()
		for !g.closed && (g.ln == nil || g.paused) {
			g.changed.Wait()
		}
		ln, closed := g.ln, g.closed
		g.mu.Unlock()
		if closed {
			return nil, net.ErrClosed
		}
		tcp, err := ln.AcceptTCP()
		if err == nil {
			return g.wrap(tcp), nil
		}
		g.mu.Lock()
		ours := g.closed || g.paused || g.ln != ln
		g.mu.Unlock()
		if ne, ok := errors.AsType[net.Error](err); !ours && (!ok || !ne.Timeout()) {
			return nil, err
		}
	}
}

func (g *gate) wrap(tcp *net.TCPConn) *conn {
	c := &conn{Conn: tcp, tcp: tcp, gate: g, gone: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[c] = struct{}{}
	delete(g.resets, tcp.RemoteAddr().String())
	return c
}

// wasReset reports whether the connection from addr was reset. Its peer cannot
// always tell: the kernel reports a reset once, to whoever reads or writes first.
func (g *gate) wasReset(addr net.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.resets[addr.String()]
	return ok
}

// Close ends the listener and every connection.
func (g *gate) Close() error {
	g.mu.Lock()
	g.closed = true
	if g.ln != nil {
		g.ln.Close()
	}
	g.letGo()
	g.changed.Broadcast()
	g.mu.Unlock()
	g.each(func(*conn) bool { return true }, func(c *conn) { c.Close() })
	return nil
}

// letGo frees what refuse and pause hold; g.mu is held.
func (g *gate) letGo() {
	if g.hold != nil {
		g.hold.close()
		g.hold = nil
	}
	if g.filler != nil {
		g.filler.Close()
		g.filler = nil
	}
}

// set makes the gate refuse or swallow new connections, or neither.
func (g *gate) set(refuse, drop bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	defer g.changed.Broadcast()
	if refuse {
		if g.ln == nil {
			return nil
		}
		g.ln.Close()
		g.ln, g.paused = nil, false
		g.letGo()
		// Nobody else may get the port meanwhile. Without a holder it is only likely.
		g.hold, _ = holdPort(g.addr)
		return nil
	}
	if g.ln == nil {
		ln, err := net.ListenTCP("tcp", g.addr)
		if err != nil {
			return fmt.Errorf("listening again on %s: %w", g.addr, err)
		}
		g.ln = ln
		g.letGo()
	}
	switch {
	case drop && !g.paused:
		g.paused = true
		g.ln.SetDeadline(time.Unix(1, 0)) // wakes Accept
		if setBacklog(g.ln, 0) == nil {
			// With the queue full the kernel drops every further SYN.
			g.filler, _ = net.DialTimeout("tcp", g.addr.String(), time.Second)
		}
	case !drop && g.paused:
		g.paused = false
		g.letGo()
		g.ln.SetDeadline(time.Time{})
		return setBacklog(g.ln, 4096)
	}
	return nil
}

// each calls do for every connection that matches.
func (g *gate) each(match func(*conn) bool, do func(*conn)) {
	g.mu.Lock()
	var found []*conn
	for c := range g.conns {
		if match(c) {
			found = append(found, c)
		}
	}
	g.mu.Unlock()
	for _, c := range found {
		do(c)
	}
}

// A conn is an accepted connection, which may stand still.
type conn struct {
	net.Conn // the interface, so that nothing bypasses Read and Write
	tcp      *net.TCPConn
	gate     *gate
	host     atomic.Pointer[string] // name that the client asked for, once known
	idle     atomic.Bool
	retired  atomic.Bool // to be closed when idle
	once     sync.Once
	gone     chan struct{}
}

func (c *conn) name() string {
	if p := c.host.Load(); p != nil {
		return *p
	}
	return ""
}

// still blocks while the host is dropped.
func (c *conn) still() {
	for {
		p := c.gate.plan()
		if !p.all.Drop && !p.of(c.name()).Drop {
			return
		}
		select {
		case <-p.replaced:
		case <-c.gone:
			return
		}
	}
}

// Read and Write wait while the host is dropped.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.tcp.Read(b)
	c.still()
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	c.still()
	return c.tcp.Write(b)
}

// Close closes the connection.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		close(c.gone)
		c.gate.mu.Lock()
		delete(c.gate.conns, c)
		c.gate.mu.Unlock()
		err = c.tcp.Close()
	})
	return err
}

// reset closes the connection with a TCP reset.
func (c *conn) reset() {
	c.gate.mu.Lock()
	if _, open := c.gate.conns[c]; open {
		c.gate.resets[c.tcp.RemoteAddr().String()] = struct{}{}
	}
	c.gate.mu.Unlock()
	c.tcp.SetLinger(0)
	c.Close()
}

// retire closes the connection as soon as no call is on it.
func (c *conn) retire() {
	c.retired.Store(true)
	if c.idle.Load() {
		c.Close()
	}
}

// connState follows http.Server's view of a connection.
func connState(nc net.Conn, state http.ConnState) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	c.idle.Store(state == http.StateIdle)
	if state == http.StateIdle && c.retired.Load() {
		c.Close()
	}
}
