package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
)

// maxConns bounds the connections to one HTTP port. When it is reached, a new
// one takes the place of the one that has waited longest for a request: a
// client that keeps connections must not keep kubelet out.
const maxConns = 256

// serveHTTP serves until ctx ends; no answer takes longer than bound. A port that stops working is logged and
// left: it is no reason to take the key away from kube-apiserver.
func serveHTTP(ctx context.Context, ln net.Listener, h http.Handler, bound time.Duration, logger *zap.Logger) error {
	limited := newLimitedListener(ln, maxConns)
	srv := &http.Server{
		ConnState:         limited.connState,
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      bound + 10*time.Second,
		IdleTimeout:       5 * time.Second,
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
	err := srv.Serve(limited)
	if ctx.Err() == nil && !errors.Is(err, http.ErrServerClosed) {
		logger.Error("an HTTP port has stopped working", zap.Stringer("address", ln.Addr()), zap.Error(err))
	}
	return nil
}
