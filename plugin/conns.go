package plugin

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
)

// A Connection is what is known of one open connection.
type Connection struct {
	// ID is unique within this process and grows.
	ID    uint64
	Peer  Peer
	Since time.Time
	// KeyID is the key ID that Status last told it; empty if none.
	KeyID string
	// APIServer: it has called Encrypt or Decrypt, or comes from a process
	// that has. Others call Status too (OpenShift's operator does), and what
	// they were told says nothing about data.
	APIServer bool
}

// conns keeps evidence per connection. It is the stats.Handler of the gRPC
// server, which hangs each connection's record on the context of its calls.
type conns struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]*conn
	// servers are the processes that have called Encrypt or Decrypt, oldest
	// first: a kube-apiserver reconnects, and may then call neither for days.
	servers []Peer
}

// A conn is one connection's record.
type conn struct {
	of    *conns
	id    uint64
	peer  Peer
	since time.Time

	mu   sync.Mutex
	told string // the ID that Status last told it
	// ids are the IDs that it was told, in the order in which they came up, from the
	// one under which it works with a seed on: that of the last Encrypt answered in
	// time. Before the first such answer it is the ID told before the newest one: it may
	// have a seed under that from another connection, and may only be asking.
	ids       []string
	seeded    bool // an Encrypt was answered in time
	apiServer bool
	own       bool // this process's own: see selfCheck
}

type connKey struct{}

func newConns() *conns { return &conns{open: map[uint64]*conn{}} }

// connOf returns the record of the connection that a call came by. Without the
// stats handler (a handler called directly) it is one that nothing refers to.
func connOf(ctx context.Context) *conn {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		return c
	}
	return &conn{of: newConns()}
}

// TagConn implements stats.Handler.
func (cs *conns) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	c := &conn{of: cs, since: time.Now()}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(peerInfo); ok {
			c.peer = info.peer
			if info.raw != nil {
				info.raw.gate.leave(info.raw)
			}
		}
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.last++
	c.id = cs.last
	c.apiServer = slices.Contains(cs.servers, c.peer)
	cs.open[c.id] = c
	return context.WithValue(ctx, connKey{}, c)
}

// HandleConn implements stats.Handler.
func (cs *conns) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		delete(cs.open, connOf(ctx).id)
	}
}

// TagRPC implements stats.Handler.
func (cs *conns) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (cs *conns) HandleRPC(context.Context, stats.RPCStats) {}

// tell reads the key ID and notes that the connection was told it, in one
// step: two Status calls on a connection must not leave the older answer behind.
func (c *conn) tell(keyID func(held string) string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := ""
	if len(c.ids) > 0 {
		held = c.ids[0]
	}
	before := c.told
	c.told = keyID(held)
	if c.own {
		return c.told
	}
	if c.told == "" || slices.Contains(c.ids, c.told) {
		return c.told
	}
	if !c.seeded && before != "" {
		c.ids = append(c.ids[:0], before)
	}
	if len(c.ids) == maxIDs {
		c.ids = slices.Delete(c.ids, 1, 2) // not the one with the seed
	}
	c.ids = append(c.ids, c.told)
	return c.told
}

// maxIDs bounds the IDs that a connection was told and has no seed under.
const maxIDs = 16

// settle notes that an Encrypt was answered under id in time: from now on the
// caller has a seed under it, and is told no older ID.
func (c *conn) settle(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch i := slices.Index(c.ids, id); {
	case i >= 0:
		c.ids = slices.Delete(c.ids, 0, i)
	case !c.seeded:
		c.ids = slices.Insert(c.ids, 0, id) // the answer comes late
	default:
		return
	}
	c.seeded = true
}

// toldID is the key ID that Encrypt must answer under; empty if none was told.
func (c *conn) toldID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

// maxServers bounds the memory of processes. A node has one kube-apiserver, and
// a few more one after another.
const maxServers = 64

// isAPIServer notes that the connection's process encrypts or decrypts.
func (c *conn) isAPIServer() {
	c.mu.Lock()
	known := c.apiServer
	c.apiServer = true
	c.mu.Unlock()
	if known || c.peer.PID == 0 {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if slices.Contains(c.of.servers, c.peer) {
		return
	}
	if len(c.of.servers) == maxServers {
		c.of.servers = slices.Delete(c.of.servers, 0, 1)
	}
	c.of.servers = append(c.of.servers, c.peer)
	// Its other connections are a kube-apiserver's too.
	for _, o := range c.of.open {
		if o.peer == c.peer {
			o.mu.Lock()
			o.apiServer = true
			o.mu.Unlock()
		}
	}
}

// isOwn notes that the connection is one of this process to itself.
func (c *conn) isOwn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = true
}

// list returns the open connections, oldest first.
func (cs *conns) list() []Connection {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	out := make([]Connection, 0, len(cs.open))
	for _, c := range cs.open {
		c.mu.Lock()
		if c.own {
			c.mu.Unlock()
			continue
		}
		out = append(out, Connection{ID: c.id, Peer: c.peer, Since: c.since, KeyID: c.told, APIServer: c.apiServer})
		c.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Connection) int { return int(a.ID) - int(b.ID) })
	return out
}
