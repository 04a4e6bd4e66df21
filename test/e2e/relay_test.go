package e2e_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// A relay is one plugin's way to the vault. While it is cut, nothing gets through and
// nothing is refused, as when a network loses packets.
type relay struct {
	ln   net.Listener
	to   string
	wait sync.WaitGroup

	mu     sync.Mutex
	pass   chan struct{} // closed while packets pass
	conns  []net.Conn
	closed bool
}

// newRelay stands between a plugin and the proxy at the URL to.
func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{ln: ln, to: strings.TrimPrefix(to, "http://"), pass: make(chan struct{})}
	close(r.pass)
	r.wait.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

// use leads a plugin here.
func (r *relay) use(c *stack.PluginConfig) {
	var env []string
	for _, v := range c.Env {
		env = append(env, strings.Replace(v, r.to, r.ln.Addr().String(), 1))
	}
	c.Env = env
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass = make(chan struct{})
}

func (r *relay) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.pass)
}

func (r *relay) accept() {
	for {
		down, err := r.ln.Accept()
		if err != nil {
			return
		}
		if !r.keep(down) {
			return
		}
		r.wait.Go(func() { r.join(down) })
	}
}

func (r *relay) join(down net.Conn) {
	defer down.Close()
	if !r.through() {
		return
	}
	up, err := net.Dial("tcp", r.to)
	if err != nil || !r.keep(up) {
		return
	}
	defer up.Close()
	var both sync.WaitGroup
	both.Go(func() { r.copy(up, down) })
	both.Go(func() { r.copy(down, up) })
	both.Wait()
}

// copy ends both when one side ends: nobody here half-closes.
func (r *relay) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !r.through() || err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// through waits until packets pass; false when the relay is closed.
func (r *relay) through() bool {
	r.mu.Lock()
	pass := r.pass
	r.mu.Unlock()
	<-pass
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.closed
}

func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		c.Close()
		return false
	}
	r.conns = append(r.conns, c)
	return true
}

func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	select {
	case <-r.pass:
	default:
		close(r.pass)
	}
	for _, c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.ln.Close()
	r.wait.Wait()
}
