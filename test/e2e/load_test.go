package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"azure-kms-plugin/test/stack"
)

// A load calls the API at fixed rates, whether or not it keeps up, and keeps
// every latency and every failure.
type load struct {
	cluster *cluster
	wait    sync.WaitGroup
	stop    context.CancelFunc

	mu      sync.Mutex
	objects []stack.Object // written, so that they can be read
	writes  series
	reads   series
}

type series struct {
	took   []time.Duration
	failed []error
}

// startLoad creates writes secrets and configmaps a second, and reads reads of
// those that exist. Reads ask etcd, so that kube-apiserver has to decrypt.
func (c *cluster) startLoad(writes, reads int, objects []stack.Object) *load {
	ctx, cancel := context.WithCancel(c.t.Context())
	l := &load{cluster: c, stop: cancel, objects: slices.Clone(objects)}
	l.every(ctx, writes, &l.writes, func(ctx context.Context, i int) error {
		o := secret(fmt.Sprintf("load-%d", i))
		if i%4 == 3 {
			o = configMap(fmt.Sprintf("load-%d", i))
		}
		if err := c.api.Client.Create(ctx, o); err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.objects = append(l.objects, o)
		return nil
	})
	l.every(ctx, reads, &l.reads, func(ctx context.Context, _ int) error {
		l.mu.Lock()
		o := l.objects[rand.IntN(len(l.objects))]
		l.mu.Unlock()
		return c.check(ctx, o)
	})
	return l
}

// every calls do rate times a second until ctx ends. A call that has begun is
// finished, since a cut one would look like a failure.
func (l *load) every(ctx context.Context, rate int, into *series, do func(context.Context, int) error) {
	l.wait.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			l.wait.Go(func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
				defer cancel()
				began := time.Now()
				err := do(ctx, i)
				l.mu.Lock()
				defer l.mu.Unlock()
				into.took = append(into.took, time.Since(began))
				if err != nil {
					into.failed = append(into.failed, err)
				}
			})
		}
	})
}

// end stops the load and returns all objects that exist.
func (l *load) end() []stack.Object {
	l.stop()
	l.wait.Wait()
	return l.objects
}

// served is how many requests have ended so far.
func (l *load) served() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.reads.took) + len(l.writes.took)
}

func (s series) report(test, what string) {
	slices.Sort(s.took)
	at := func(q float64) time.Duration { return round(s.took[int(q*float64(len(s.took)-1))]) }
	report.row(test, what, fmt.Sprint(len(s.took)), fmt.Sprint(len(s.failed)),
		fmt.Sprintf("p50 %v, p99 %v, max %v", at(0.5), at(0.99), at(1)))
}
