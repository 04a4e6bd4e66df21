package plugin

import (
	"context"
	"net"
	"time"
)

// ServeOn runs s on a listener of the test's, for tests in a synctest bubble.
func (s *Server) ServeOn(ctx context.Context, l net.Listener) error {
	s.serving.Go(func() { s.serve(l) })
	select {
	case <-ctx.Done():
	case <-s.stop:
	}
	l.Close()
	return s.shutdown()
}

// CheckPath is the part of CheckSocket that asks nothing.
func (s *Server) CheckPath() error { return s.checkPath() }

// ForgetCheck has the next CheckSocket ask anew.
func (s *Server) ForgetCheck() {
	s.self.mu.Lock()
	defer s.self.mu.Unlock()
	s.self.ended = time.Time{}
}

// AskSelf asks whoever serves at a path whether it is a check of its own.
func AskSelf(path string) error { return newSelfCheck(path).status() }

var (
	ParseCiphertext  = parseCiphertext
	ParseAnnotations = parseAnnotations
	StatusOf         = statusOf
)

const (
	MaxPending = maxPending
	MaxServers = maxServers
	FlushTime  = flushTime
)

func (f Format) Inner(seed []byte) ([]byte, error) { return f.inner(seed) }
func (f Format) Seed(inner []byte) ([]byte, error) { return f.seed(inner) }
func (f Format) Outer(block []byte) []byte         { return f.outer(block) }
