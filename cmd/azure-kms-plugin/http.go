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

// maxConns bounds the connections to one HTTP port, and with them the memory that
// strangers can make us take: each costs some 16 KiB, and as much again until it is
// collected. When it is reached, a new one takes the place of the one that has kept us
// waiting longest: slow clients must not keep kubelet out.
const maxConns = 64

// serveHTTP serves until ctx ends. A port that stops working is logged and
// left: it is no reason to take the key away from kube-apiserver.
//
// Each connection gets one answer. Those who ask come every few seconds at most, and
// a connection that nobody keeps costs nothing.
func serveHTTP(ctx context.Context, ln net.Listener, h http.Handler, logger *zap.Logger) error {
	srv := &http.Server{
		ConnContext: connContext,
		Handler:     placed(withoutBody(h)),
		// Not a ReadTimeout: it would also end the context of a request that is
		// being worked on. How long that may take is the handler's business.
		ReadHeaderTimeout: 5 * time.Second,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // it tells of clients' mistakes
	}
	srv.SetKeepAlivesEnabled(false)
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

// withoutBody keeps the server from waiting for the body of a request, which nothing
// here reads: it would do so after the answer.
func withoutBody(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// A connection that cannot be given one is at its end anyway.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		}
		h.ServeHTTP(w, r)
	})
}
