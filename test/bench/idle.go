package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"
)

// The pace at which a healthy kube-apiserver whose /readyz is probed asks for
// Status, and kubelet for the health endpoint.
const (
	statusEvery = 20 * time.Second
	probeEvery  = 10 * time.Second
)

// settle is how long a plugin is left alone after its start.
const settle = 10 * time.Second

// measureIdleAll measures the idle plugins and, beside them, one more process of
// ours that follows the newest version of its key. Others cannot: they ask for a
// version.
func measureIdleAll(ctx context.Context, ours target, benches []*bench) error {
	first := benches[0]
	t := target{name: ours.name + ", following", bin: ours.bin, vault: "bench-follow"}
	if _, err := first.e.createKey(t.vault); err != nil {
		return err
	}
	follower := &bench{f: &figures{Name: t.name}}
	var err error
	if follower.process, err = start(ctx, t, first.e, first.dir); err != nil {
		return err
	}
	// The load that comes next is measured without it.
	defer follower.process.stop()
	err = measureIdle(ctx, first.idle, first.e, append(slices.Clone(benches), follower), first.log)
	first.f.FollowCallsPerDay, first.f.FollowIdleCalls = follower.f.CallsPerDay, follower.f.IdleCalls
	return err
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
		calls := map[string][]time.Time{}
		for _, r := range requests {
			if r.Host == b.process.host() && r.Time.After(began) {
				calls[string(r.Op)] = append(calls[string(r.Op)], r.Time)
			}
		}
		// Each operation has a pace of its own.
		b.f.IdleCalls, b.f.CallsPerDay = map[string]int{}, 0
		for op, times := range calls {
			b.f.IdleCalls[op] = len(times)
			b.f.CallsPerDay += math.Round(perDay(times, window))
		}
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
	before, err := b.e.count(b.process.calls())
	if err != nil {
		return 0, err
	}
	if _, _, err := load(ctx, n, 1, func(ctx context.Context, _ int) error { return f(ctx) }); err != nil {
		return 0, err
	}
	after, err := b.e.count(b.process.calls())
	return float64(after-before) / float64(n), err
}
