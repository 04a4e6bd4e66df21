package plugin

import (
	"context"
	"net"
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
