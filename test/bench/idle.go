package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"azure-kms-plugin/test/vault"
)

// The pace at which a healthy kube-apiserver whose /readyz is probed asks for
// Status, and kubelet for the health endpoint.
const (
	statusEvery = 20 * time.Second
	probeEvery  = 10 * time.Second
)

// settle is how long a plugin is left alone after its start.
const settle = 10 * time.Second

// measureStart starts the plugin several times, each time as the first one on
// its node, then as often where one ran before and may have left something
// behind, and leaves the last one running.
func (b *bench) measureStart(ctx context.Context, t target) error {
	info, err := os.Stat(t.bin)
	if err != nil {
		return err
	}
	b.f.Binary = float64(info.Size()) / (1 << 20)
	b.say("starting it %d times", 2*b.starts)
	var socket, ready, again sample
	for i := range 2 * b.starts {
		dir := b.dir
		if i < b.starts {
			if dir, err = os.MkdirTemp(b.dir, "s"); err != nil {
				return err
			}
		}
		before, err := b.e.count(vault.Match{Host: t.host()})
		if err != nil {
			return err
		}
		if b.process, err = start(ctx, t, b.e, dir); err != nil {
			return err
		}
		after, err := b.e.count(vault.Match{Host: t.host()})
		if err != nil {
			return err
		}
		if i < b.starts {
			socket, ready = append(socket, b.process.socketAfter), append(ready, b.process.readyAfter)
			b.f.StartCalls = after - before
		} else if i > b.starts { // the first in this folder found nothing
			again = append(again, b.process.readyAfter)
		}
		if i < 2*b.starts-1 {
			b.process.stop()
		}
	}
	b.f.SocketAfter, b.f.ReadyAfter, b.f.Restart = spread(socket), spread(ready), spread(again)
	return nil
}

func spread(s sample) startTime {
	return startTime{Median: s.at(0.5), Min: ms(slices.Min(s)), Max: ms(slices.Max(s))}
}

// measureIdle lets all plugins idle together, with no more than the calls that
// a cluster makes when nothing happens, and counts what they ask of the vault.
func measureIdle(ctx context.Context, window time.Duration, e *emulator, benches []*bench, log io.Writer) error {
	fmt.Fprintf(log, "%s  idle for %v\n", time.Now().Format(time.TimeOnly), settle+window)
	select { // what a start does after its first good Status is no idle call
	case <-time.After(settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	idle, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	var wg sync.WaitGroup
	for _, b := range benches {
		// Errors show in other figures; here only the calls count.
		wg.Go(func() { every(idle, statusEvery, func() { _ = b.process.status(idle) }) })
		wg.Go(func() { every(idle, probeEvery, func() { _ = b.process.healthz(idle) }) })
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	requests, err := e.requests()
	if err != nil {
		return err
	}
	for _, b := range benches {
		var calls []time.Time
		b.f.IdleCalls = map[string]int{}
		for _, r := range requests {
			if r.Host == b.process.host() && r.Time.After(began) {
				calls = append(calls, r.Time)
				b.f.IdleCalls[string(r.Op)]++
			}
		}
		b.f.CallsPerDay = math.Round(perDay(calls, window))
		if b.f.IdleRSS, err = b.process.memory("VmRSS"); err != nil {
			return err
		}
	}
	return nil
}

// every calls f at once and then each period until ctx ends.
func every(ctx context.Context, period time.Duration, f func()) {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		f()
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// measureCalls counts what a burst of Status calls and one of health probes
// ask of the vault. Both are over before a prober's next turn or two, which
// would show as a hundredth.
func (b *bench) measureCalls(ctx context.Context) (err error) {
	const n = 100
	if b.f.CallsPerStatus, err = b.callsPer(ctx, n, b.process.status); err != nil {
		return err
	}
	b.f.CallsPerProbe, err = b.callsPer(ctx, n, b.process.healthz)
	return err
}

func (b *bench) callsPer(ctx context.Context, n int, f func(context.Context) error) (float64, error) {
	before, err := b.e.count(vault.Match{Host: b.process.host()})
	if err != nil {
		return 0, err
	}
	if _, _, err := load(ctx, n, 1, func(ctx context.Context, _ int) error { return f(ctx) }); err != nil {
		return 0, err
	}
	after, err := b.e.count(vault.Match{Host: b.process.host()})
	return float64(after-before) / float64(n), err
}
