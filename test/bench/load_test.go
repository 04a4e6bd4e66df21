package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSample_NearestRank(t *testing.T) {
	var s sample
	for i := 100; i >= 1; i-- {
		s = append(s, time.Duration(i)*time.Millisecond)
	}
	require.InDelta(t, 50, s.at(0.5), 1e-9)
	require.InDelta(t, 99, s.at(0.99), 1e-9)
	require.InDelta(t, 1, s.at(0), 1e-9)
	require.InDelta(t, 100, s.at(1), 1e-9)
	require.InDelta(t, 7, sample{7 * time.Millisecond}.at(0.99), 1e-9)
	require.Zero(t, sample(nil).at(0.5))
}

func TestLoad_MakesEveryCallOnceAndNoMoreAtOnce(t *testing.T) {
	var now, most atomic.Int64
	seen := make([]atomic.Int64, 200)
	took, _, err := load(t.Context(), len(seen), 8, func(_ context.Context, i int) error {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		seen[i].Add(1)
		return nil
	})
	require.NoError(t, err)
	require.Len(t, took, len(seen))
	require.LessOrEqual(t, most.Load(), int64(8))
	for i := range seen {
		require.EqualValues(t, 1, seen[i].Load())
	}
}

func TestLoad_EndsWithTheFirstError(t *testing.T) {
	cause := errors.New("refused")
	var calls atomic.Int64
	_, _, err := load(t.Context(), 1000, 4, func(ctx context.Context, _ int) error {
		switch n := calls.Add(1); {
		case n == 10:
			return cause
		case n > 10: // until the failure has been seen
			<-ctx.Done()
		}
		return nil
	})
	require.ErrorIs(t, err, cause)
	require.LessOrEqual(t, calls.Load(), int64(10+3))
}

func TestPerDay(t *testing.T) {
	at := func(seconds ...int) []time.Time {
		var all []time.Time
		for _, s := range seconds {
			all = append(all, time.Unix(int64(s), 0))
		}
		return all
	}
	require.Zero(t, perDay(nil, time.Minute))
	require.InDelta(t, 1440, perDay(at(5), time.Minute), 1e-6)
	// Every 30 s: the same figure whether the window caught three or four.
	require.InDelta(t, 2880, perDay(at(31, 1, 61), 90*time.Second), 1e-6)
	require.InDelta(t, 2880, perDay(at(1, 31, 61, 91), 91*time.Second), 1e-6)
	require.InDelta(t, 2*1440, perDay(at(7, 7), time.Minute), 1e-6)
}
