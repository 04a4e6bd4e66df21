package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// A load calls the API at fixed rates, whether or not it keeps up, and keeps
// every latency and every failure. The nodes in service get its calls in turn.
type load struct {
	nodes []*node
	wait  sync.WaitGroup
	stop  context.CancelFunc
	began time.Time

	mu      sync.Mutex
	objects []stack.Object       // written, so that they can be read
	written map[string]time.Time // when each was, by its key in etcd; zero if before the load
	writes  series
	reads   series
}

type series struct {
	took   []time.Duration
	failed []error
}

// A readError names the object that could not be read.
type readError struct {
	object stack.Object
	err    error
}

func (e *readError) Error() string { return e.err.Error() }

// startLoad creates writes secrets and configmaps a second, and reads reads of
// those that exist. Reads ask etcd, so that kube-apiserver has to decrypt.
func (p *controlPlane) startLoad(writes, reads int, objects []stack.Object) *load {
	ctx, cancel := context.WithCancel(p.t.Context())
	l := &load{nodes: p.nodes, stop: cancel, began: time.Now(), objects: slices.Clone(objects), written: map[string]time.Time{}}
	for _, o := range objects {
		l.written[etcdKey(o)] = time.Time{}
	}
	p.loads++
	prefix := fmt.Sprintf("load-%d-", p.loads)
	l.every(ctx, writes, &l.writes, func(ctx context.Context, n *node, i int) error {
		o := secret(prefix + fmt.Sprint(i))
		if i%4 == 3 {
			o = configMap(prefix + fmt.Sprint(i))
		}
		if err := n.api.Client.Create(ctx, o); err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.objects = append(l.objects, o)
		l.written[etcdKey(o)] = time.Now()
		return nil
	})
	l.every(ctx, reads, &l.reads, func(ctx context.Context, n *node, _ int) error {
		l.mu.Lock()
		o := l.objects[rand.IntN(len(l.objects))]
		l.mu.Unlock()
		if err := n.check(ctx, o); err != nil {
			return &readError{o, err}
		}
		return nil
	})
	return l
}

// every calls do rate times a second until ctx ends. A call that has begun is
// finished, since a cut one would look like a failure.
func (l *load) every(ctx context.Context, rate int, into *series, do func(context.Context, *node, int) error) {
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
				err := l.send(ctx, i, do)
				l.mu.Lock()
				defer l.mu.Unlock()
				into.took = append(into.took, time.Since(began))
				if err != nil {
					into.failed = append(into.failed, fmt.Errorf("%v after the load began: %w", round(began.Sub(l.began)), err))
				}
			})
		}
	})
}

// send calls do with the i-th node, or the next one that is in service.
func (l *load) send(ctx context.Context, i int, do func(context.Context, *node, int) error) error {
	for k := range l.nodes {
		n := l.nodes[(i+k)%len(l.nodes)]
		if !n.enter() {
			continue
		}
		defer n.busy.Done()
		if err := do(ctx, n, i); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
		return nil
	}
	return errors.New("no node is in service")
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

// await waits until n more requests have ended.
func (l *load) await(t *testing.T, n int) {
	t.Helper()
	from := l.served()
	require.Eventually(t, func() bool { return l.served() >= from+n }, time.Minute, 50*time.Millisecond)
}

// report adds a row for the writes and one for the reads to the table.
func (l *load) report(test, while string) {
	l.writes.report(test, "writes "+while)
	l.reads.report(test, "reads "+while)
}

func (s series) report(test, what string) {
	slices.Sort(s.took)
	at := func(q float64) time.Duration { return round(s.took[int(q*float64(len(s.took)-1))]) }
	report.row(test, what, fmt.Sprint(len(s.took)), fmt.Sprint(len(s.failed)),
		fmt.Sprintf("p50 %v, p99 %v, max %v", at(0.5), at(0.99), at(1)))
}
