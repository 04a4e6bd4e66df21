package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// serveTest serves h as the health port and the metrics port are served.
func serveTest(t *testing.T, h http.HandlerFunc) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- serveHTTP(ctx, ln, h, time.Second, zap.NewNop()) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return ln.Addr().String()
}

func ask(t *testing.T, addr string) (net.Conn, func() (int, error)) {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(3*time.Second)))
	_, err = fmt.Fprint(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	return c, func() (int, error) {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
}

// Clients that keep their connections do not keep others out.
func TestServeHTTP_KeepAlive(t *testing.T) {
	addr := serveTest(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	for i := range 300 {
		_, answer := ask(t, addr)
		code, err := answer()
		require.NoError(t, err, "client %d", i)
		require.Equal(t, 200, code)
	}
}

// A connection that is being answered is never the one to go.
func TestServeHTTP_BusyAreKept(t *testing.T) {
	release, begun := make(chan struct{}), make(chan struct{}, maxConns+1)
	addr := serveTest(t, func(w http.ResponseWriter, _ *http.Request) {
		begun <- struct{}{}
		<-release
		fmt.Fprint(w, "ok")
	})
	var answers []func() (int, error)
	for range maxConns {
		_, answer := ask(t, addr)
		answers = append(answers, answer)
	}
	for range maxConns {
		<-begun
	}
	_, last := ask(t, addr)
	close(release)
	for i, answer := range append(answers, last) {
		code, err := answer()
		require.NoError(t, err, "client %d", i)
		require.Equal(t, 200, code)
	}
}
