package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	httpConnections = 2000             // held open, or tried to, by slow clients
	httpRate        = 200              // good requests a second
	slowReturn      = 10 * time.Second // after they were thrown out
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

// httpLoadArg makes this program the load. It has to be another process, and one that
// stands back: in the same one, its thousands of goroutines would be what a Status call
// waits for, and a load comes from other machines.
const httpLoadArg = "-load-http"

// httpLoadNice is the priority of the load. How much of it got through is in the report.
const httpLoadNice = 10

// httpTargets come to the load as JSON on its standard input, which ends when it has to.
type httpTargets struct{ Probe, Metrics string }

// measureHTTP asks for Status while others load both HTTP ports with good requests,
// and hold connections in every slow way that there is. They come back ten seconds
// after they were thrown out.
func (b *bench) measureHTTP(ctx context.Context) error {
	before, err := b.process.memory("VmRSS")
	if err != nil {
		return err
	}
	load, err := startHTTPLoad(httpTargets{b.process.probe, b.process.metrics})
	if err != nil {
		return err
	}
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	most := before
	var memoryErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		every(watchCtx, 100*time.Millisecond, func() {
			now, err := b.process.memory("VmRSS")
			most, memoryErr = max(most, now), errors.Join(memoryErr, err)
		})
	})
	status := b.statusEvery(ctx, b.httpWindow)
	stop()
	wg.Wait()
	result, err := load.end()
	if err != nil {
		return err
	}
	result.Status, result.Grown = status, most-before
	b.f.HTTPLoad = &result
	return errors.Join(memoryErr, ctx.Err())
}

// A runningLoad is the load's process.
type runningLoad struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

func startHTTPLoad(targets httpTargets) (*runningLoad, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Not setpriority on its ID: that is of one thread.
	l := &runningLoad{cmd: exec.Command("nice", "-n", strconv.Itoa(httpLoadNice), self, httpLoadArg)}
	l.cmd.Stderr = os.Stderr
	l.cmd.SysProcAttr = ownGroup()
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if l.out, err = l.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := l.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the load on the HTTP ports: %w", err)
	}
	if err := json.NewEncoder(l.in).Encode(targets); err != nil {
		l.end()
		return nil, err
	}
	return l, nil
}

// end ends the load and returns what came of it.
func (l *runningLoad) end() (r httpLoad, err error) {
	l.in.Close()
	err = json.NewDecoder(l.out).Decode(&r)
	return r, errors.Join(err, l.cmd.Wait())
}

// loadHTTP is the load, until in ends.
func loadHTTP(in io.Reader, out io.Writer) error {
	var t httpTargets
	dec := json.NewDecoder(in)
	if err := dec.Decode(&t); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	hosts := []string{t.Probe, t.Metrics}
	for i := range httpConnections {
		u, err := url.Parse(hosts[i%2])
		if err != nil {
			stop()
			return err
		}
		wg.Go(func() { keepSlow(ctx, u.Host, slowKinds[i/2%len(slowKinds)]) })
	}
	var asked, failed, kubeletFailed atomic.Int64
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: -1}}
	base := strings.TrimSuffix(t.Probe, "/healthz")
	targets := []string{t.Probe, base + "/livez", base + "/readyz?verbose", base + "/status", base + "/", t.Metrics}
	wg.Go(func() {
		n := 0
		every(ctx, time.Second/httpRate, func() {
			target := targets[n%len(targets)]
			n++
			wg.Go(func() {
				asked.Add(1)
				if err := fetch(ctx, client, target); err != nil && ctx.Err() == nil {
					failed.Add(1)
				}
			})
		})
	})
	kubelet := &http.Client{Timeout: kubeletPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	wg.Go(func() {
		every(ctx, time.Second, func() {
			if err := fetch(ctx, kubelet, t.Probe); err != nil && ctx.Err() == nil {
				kubeletFailed.Add(1)
			}
		})
	})
	_, _ = io.Copy(io.Discard, in)
	stop()
	wg.Wait()
	return json.NewEncoder(out).Encode(httpLoad{Asked: asked.Load(), Failed: failed.Load(), KubeletFailed: kubeletFailed.Load()})
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
		case <-time.After(slowReturn):
		case <-ctx.Done():
		}
	}
}
