package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
)

// maxConns bounds the connections to one HTTP port. Slow clients hold theirs
// for as long as the time-outs below allow, so the others get in after that.
const maxConns = 256

// serveHTTP serves until ctx ends; no answer takes longer than bound. A port that stops working is logged and
// left: it is no reason to take the key away from kube-apiserver.
func serveHTTP(ctx context.Context, ln net.Listener, h http.Handler, bound time.Duration, logger *zap.Logger) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      bound + 10*time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // it tells of clients' mistakes
	}
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-ctx.Done():
		case <-stopped:
		}
		srv.Close()
	}()
	err := srv.Serve(newLimitedListener(ln, maxConns))
	if ctx.Err() == nil && !errors.Is(err, http.ErrServerClosed) {
		logger.Error("an HTTP port has stopped working", zap.Stringer("address", ln.Addr()), zap.Error(err))
	}
	return nil
}

// limitedListener accepts no more connections than it has slots; the kernel
// keeps the others waiting.
type limitedListener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newLimitedListener(ln net.Listener, conns int) *limitedListener {
	return &limitedListener{Listener: ln, slots: make(chan struct{}, conns), closed: make(chan struct{})}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
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
