package plugin

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"go.uber.org/zap"
)

// CheckSocket reports why a client that connects to the path now would not be
// answered by this server; nil if it would. It takes a Status call to find out, which
// lasts 5 seconds at most.
func (s *Server) CheckSocket() error {
	if err := s.checkPath(); err != nil {
		return err
	}
	return s.self.run()
}

// checkPath reports why the path does not lead to this server.
func (s *Server) checkPath() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return s.sockError("the server is stopping", nil)
	case s.bound == nil:
		return s.sockError("the socket is not bound yet", nil)
	}
	err := s.bound.leadsHere()
	if err != nil && s.fault != nil {
		return s.fault // says more: what kept it from being bound anew
	}
	return err
}

// watch binds the socket anew when it no longer leads here and its place is
// free, until ctx ends. kube-apiserver dials by path, so a deleted file would
// otherwise be noticed at its next reconnect, perhaps weeks later.
func (s *Server) watch(ctx context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.look(ctx)
		}
	}
}

// look is one round of watch. It binds without holding the lock, because that
// may take seconds and CheckSocket must not.
func (s *Server) look(ctx context.Context) {
	s.binding.Lock()
	defer s.binding.Unlock()
	s.mu.Lock()
	old, fault, stopped := s.bound, s.fault, s.stopped
	s.mu.Unlock()
	if stopped {
		return // it does not lead here because it should not
	}
	lost := old.leadsHere()
	if lost == nil {
		if fault != nil {
			s.log.Info("the socket leads here again", zap.String("path", s.sock.addr.Path))
			s.setFault(nil)
		}
		return
	}
	b, err := s.sock.listen(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		if fault == nil || fault.Error() != err.Error() {
			s.log.Error("clients cannot reach this server by the socket's path", zap.Error(err))
		}
		s.setFault(err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		b.Close()
		return
	}
	cause := "its place was taken and is free again"
	if errors.Is(lost, fs.ErrNotExist) {
		cause = lost.Error()
	}
	s.log.Warn("bound the socket anew", zap.String("path", s.sock.addr.Path), zap.String("cause", cause))
	s.bound, s.fault = b, nil
	old.Close() // its connections live on
	s.serving.Go(func() { s.serve(b) })
}

func (s *Server) setFault(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = err
}
