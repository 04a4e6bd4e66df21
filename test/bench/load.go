package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A sample is a set of durations of one kind of call.
type sample []time.Duration

// at returns the duration below which the share q of the sample lies (nearest
// rank), in milliseconds.
func (s sample) at(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(q*float64(len(sorted))+0.999999) - 1
	return ms(sorted[min(max(i, 0), len(sorted)-1)])
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// latency is what is kept of a sample.
type latency struct {
	P50, P99 float64 // ms
	N        int
	Failed   int `json:",omitempty"` // calls that did not end well; they are in the sample
}

func (s sample) latency() latency { return latency{P50: s.at(0.5), P99: s.at(0.99), N: len(s)} }

func (l latency) String() string {
	text := fmt.Sprintf("%.2f / %.2f", l.P50, l.P99)
	if l.Failed > 0 {
		text += fmt.Sprintf(" (%d of %d failed)", l.Failed, l.N)
	}
	return text
}

// load makes n calls, c at a time, and returns how long each and all of them
// took. The first error ends it.
func load(ctx context.Context, n, c int, call func(ctx context.Context, i int) error) (sample, time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make(sample, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range c {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				t := time.Now()
				if err := call(ctx, i); err != nil {
					cancel(fmt.Errorf("call %d of %d: %w", i+1, n, err))
					return
				}
				took[i] = time.Since(t)
			}
		})
	}
	wg.Wait()
	all := time.Since(began)
	return took, all, context.Cause(ctx)
}

// perDay turns the times of calls inside a window into calls a day. With two
// or more, the time between the first and the last is what counts: a window
// that happens to hold one call more would else change the figure by a tenth.
func perDay(calls []time.Time, window time.Duration) float64 {
	const day = float64(24 * time.Hour)
	if len(calls) < 2 {
		return float64(len(calls)) * day / float64(window)
	}
	sorted := slices.SortedFunc(slices.Values(calls), time.Time.Compare)
	span := sorted[len(sorted)-1].Sub(sorted[0])
	if span <= 0 {
		return float64(len(calls)) * day / float64(window)
	}
	return float64(len(calls)-1) * day / float64(span)
}
