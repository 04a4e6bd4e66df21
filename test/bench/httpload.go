package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	httpConnections = 2000 // held open, or tried to, by slow clients
	httpRate        = 200  // good requests a second
	kubeletPatience = time.Second
	statusPace      = 5 * time.Millisecond
)

// An httpLoad is what came of a minute of load on the HTTP ports. Failed requests are
// not among the criteria, kubelet's are.
type httpLoad struct {
	Status        latency
	Grown         float64 // MiB of VmRSS, at most
	Asked, Failed int64   // requests that got their answer, and that did not
	KubeletFailed int64   // probes that had none within their second
}

// measureHTTP asks for Status while others load both HTTP ports with good requests,
// and hold connections in every slow way that there is. They come back a second after
// they were thrown out.
func (b *bench) measureHTTP(ctx context.Context) error {
	before, err := b.process.memory("VmRSS")
	if err != nil {
		return err
	}
	loadCtx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	hosts := []string{b.process.probe, b.process.metrics}
	for i := range httpConnections {
		u, err := url.Parse(hosts[i%2])
		if err != nil {
			return err
		}
		wg.Go(func() { keepSlow(loadCtx, u.Host, slowKinds[i/2%len(slowKinds)]) })
	}
	// They come at once, and that is the hardest moment; but not for a percentile.
	var asked, failed, kubeletFailed atomic.Int64
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: -1}}
	base := strings.TrimSuffix(b.process.probe, "/healthz")
	targets := []string{b.process.probe, base + "/livez", base + "/readyz?verbose", base + "/status", base + "/", b.process.metrics}
	wg.Go(func() {
		n := 0
		every(loadCtx, time.Second/httpRate, func() {
			target := targets[n%len(targets)]
			n++
			wg.Go(func() {
				asked.Add(1)
				if err := fetch(loadCtx, client, target); err != nil && loadCtx.Err() == nil {
					failed.Add(1)
				}
			})
		})
	})
	kubelet := &http.Client{Timeout: kubeletPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	wg.Go(func() {
		every(loadCtx, time.Second, func() {
			if err := fetch(loadCtx, kubelet, b.process.probe); err != nil && loadCtx.Err() == nil {
				kubeletFailed.Add(1)
			}
		})
	})
	most := before
	var memoryErr error
	wg.Go(func() {
		every(loadCtx, 100*time.Millisecond, func() {
			now, err := b.process.memory("VmRSS")
			most, memoryErr = max(most, now), errors.Join(memoryErr, err)
		})
	})
	status := b.statusEvery(ctx, b.httpWindow)
	stop()
	wg.Wait()
	b.f.HTTPLoad = &httpLoad{
		Status: status, Grown: most - before,
		Asked: asked.Load(), Failed: failed.Load(), KubeletFailed: kubeletFailed.Load(),
	}
	return errors.Join(memoryErr, ctx.Err())
}

// statusEvery asks for Status at a pace. One call after the other would take a core
// from those who are served here, and be the load that it measures.
func (b *bench) statusEvery(ctx context.Context, window time.Duration) latency {
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	var took sample
	failed := 0
	every(ctx, statusPace, func() {
		t := time.Now()
		err := b.process.status(ctx)
		if ctx.Err() != nil {
			return // cut off by the end, not by the plugin
		}
		if err != nil {
			failed++
		}
		took = append(took, time.Since(t))
	})
	l := took.latency()
	l.Failed = failed
	return l
}

func fetch(ctx context.Context, client *http.Client, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// slowKinds are the ways to hold a connection. Each returns when the other side has
// ended it.
var slowKinds = []func(net.Conn){
	drain, // says nothing
	func(c net.Conn) { // a byte of its header a second
		for {
			if _, err := c.Write([]byte("x")); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	},
	func(c net.Conn) { // never reads
		for {
			if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	},
	func(c net.Conn) { // keeps what it has
		fmt.Fprint(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		drain(c)
	},
	func(c net.Conn) { // never sends its body
		fmt.Fprint(c, "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
		drain(c)
	},
}

// drain reads a byte at a time: a buffer for each connection would be this side's memory.
func drain(c net.Conn) {
	var b [1]byte
	for {
		if _, err := c.Read(b[:]); err != nil {
			return
		}
	}
}

func keepSlow(ctx context.Context, host string, slow func(net.Conn)) {
	for ctx.Err() == nil {
		if c, err := (&net.Dialer{}).DialContext(ctx, "tcp", host); err == nil {
			end := context.AfterFunc(ctx, func() { c.Close() })
			slow(c)
			end()
			c.Close()
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}
