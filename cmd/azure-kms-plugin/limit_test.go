package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// A pipes is a listener whose connections have no buffer at all: who does not read
// holds up the writer with the first byte. Its backlog is as long as is needed.
type pipes struct {
	queue chan net.Conn
	done  chan struct{}
	close func()
}

func newPipes() *pipes {
	p := &pipes{queue: make(chan net.Conn, 10000), done: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.done) })
	return p
}

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.queue <- server
	return client
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.queue:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// serveTest serves h as the health port and the metrics port are served.
func serveTest(t *testing.T, h http.HandlerFunc) (p *pipes, stop func()) {
	p = newPipes()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- serveHTTP(ctx, p, h, zap.NewNop()) }()
	return p, func() {
		cancel()
		require.NoError(t, <-done)
	}
}

const request = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"

// ask is kubelet: a new connection, one request, and no more patience than given.
func ask(p *pipes, patience time.Duration) (string, error) {
	c := p.dial()
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprint(c, request); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// slowClients are the ways to keep a server waiting. Each returns when its
// connection has ended.
var slowClients = map[string]func(net.Conn){
	"says nothing": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
	"sends a byte of its header a second": func(c net.Conn) {
		for _, b := range []byte("GET /livez HTTP/1.1\r\nHost: " + strings.Repeat("x", 1000)) {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	},
	"never reads the answer": func(c net.Conn) {
		// A write ends when the other side has closed.
		_, _ = fmt.Fprint(c, request+request)
	},
	"never sends the body": func(c net.Conn) {
		_, _ = fmt.Fprint(c, "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	},
	"keeps its connection": func(c net.Conn) {
		_, _ = fmt.Fprint(c, request)
		_, _ = io.Copy(io.Discard, c)
	},
}

// Kubelet asks each second and waits no longer than that. It gets its answer however
// many slow clients there are, of each kind and of all together, who come back a
// second after they were thrown out.
func TestServeHTTP_KubeletGetsIn(t *testing.T) {
	kinds := map[string][]func(net.Conn){"all kinds": nil}
	for name, slow := range slowClients {
		kinds[name] = []func(net.Conn){slow}
		kinds["all kinds"] = append(kinds["all kinds"], slow)
	}
	for name, slow := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, stop := serveTest(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
				ctx, cancel := context.WithCancel(t.Context())
				var clients sync.WaitGroup
				for i := range 2000 {
					clients.Go(func() {
						for ctx.Err() == nil {
							c := p.dial()
							end := context.AfterFunc(ctx, func() { c.Close() })
							slow[i%len(slow)](c)
							end()
							c.Close()
							time.Sleep(time.Second)
						}
					})
				}
				for range 3 {
					time.Sleep(time.Second)
					body, err := ask(p, time.Second)
					require.NoError(t, err)
					require.Equal(t, "ok", body)
				}
				cancel()
				stop()
				for len(p.queue) > 0 {
					(<-p.queue).Close()
				}
				clients.Wait()
			})
		})
	}
}

// A connection whose request is being worked on is never the one to go, and the one
// that comes when all are waits for its turn.
func TestServeHTTP_BusyAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy, most atomic.Int64
		p, stop := serveTest(t, func(w http.ResponseWriter, _ *http.Request) {
			n := busy.Add(1)
			defer busy.Add(-1)
			most.Store(max(most.Load(), n))
			time.Sleep(20 * time.Second)
			fmt.Fprint(w, "ok")
		})
		var wg sync.WaitGroup
		for range 2 * maxConns {
			wg.Go(func() {
				body, err := ask(p, time.Minute)
				require.NoError(t, err)
				require.Equal(t, "ok", body)
			})
		}
		wg.Wait()
		require.EqualValues(t, maxConns, most.Load())
		stop()
	})
}

// One that comes when there is no place is given up when the port is closed.
func TestLimitedListener_CloseWhileFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		l := newLimitedListener(p, 1)
		p.dial()
		c, err := l.Accept()
		require.NoError(t, err)
		c.(*limitedConn).mark(func() { l.work(c.(*limitedConn)) })
		late := p.dial()
		done := make(chan error)
		go func() {
			_, err := l.Accept()
			done <- err
		}()
		synctest.Wait()
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-done, net.ErrClosed)
		_, err = late.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}

// A place is given back once, whoever closes the connection and however often.
func TestLimitedListener_PlacesAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		l := newLimitedListener(p, 2)
		accept := func() *limitedConn {
			p.dial()
			c, err := l.Accept()
			require.NoError(t, err)
			return c.(*limitedConn)
		}
		first, second := accept(), accept()
		for _, c := range []*limitedConn{first, second} {
			go c.Read(make([]byte, 1))
			synctest.Wait()
		}
		begin := time.Now()
		third := accept()
		require.Equal(t, breath, time.Since(begin), "nobody goes without a chance to speak")
		_, err := first.Read(make([]byte, 1))
		require.True(t, errors.Is(err, io.ErrClosedPipe), "%v", err)
		for range 2 {
			require.NoError(t, first.Close())
			require.NoError(t, third.Close())
		}
		require.Equal(t, 1, l.open)
		require.Equal(t, 1, l.waiting.Len())
		require.NoError(t, second.Close())
		require.Zero(t, l.open)
		require.Zero(t, l.waiting.Len())
	})
}

// An answer that nobody takes holds its place no longer than others wait for it, and
// is given up in the end if nobody does.
func TestServeHTTP_AnswerThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := serveTest(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 1<<20)) })
		c := p.dial()
		_, err := fmt.Fprint(c, request)
		require.NoError(t, err)
		time.Sleep(writeBound + time.Second)
		n, err := io.Copy(io.Discard, c)
		require.NoError(t, err)
		require.Zero(t, n)
		stop()
	})
}
