package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A watch asks each kube-apiserver's /readyz once a second, as kubelet does,
// and keeps when an answer changed. Nodes out of service are not asked.
type watch struct {
	plane *controlPlane
	wait  sync.WaitGroup
	stop  context.CancelFunc
	began time.Time

	mu     sync.Mutex
	probes int
	turns  turns
}

// A turn is a change of a node's readiness.
type turn struct {
	node  string
	after time.Duration // since the watch began
	err   error         // nil: ready again
}

func (t turn) String() string {
	if t.err == nil {
		return fmt.Sprintf("%s ready again after %v", t.node, round(t.after))
	}
	return fmt.Sprintf("%s not ready after %v: %s", t.node, round(t.after), t.why())
}

// why is the line of the check that failed, if there is one.
func (t turn) why() string {
	for line := range strings.Lines(t.err.Error()) {
		if failed, ok := strings.CutPrefix(line, "[-]"); ok {
			return strings.TrimSpace(failed)
		}
	}
	return t.err.Error()
}

// turns are those of all nodes.
type turns []turn

// because returns those to not ready by one check: a busy machine fails others.
func (all turns) because(check string) (found turns) {
	for _, t := range all {
		if t.err != nil && strings.Contains(t.err.Error(), "[-]"+check) {
			found = append(found, t)
		}
	}
	return found
}

// startWatch takes every node for ready at first.
func (p *controlPlane) startWatch() *watch {
	ctx, cancel := context.WithCancel(p.t.Context())
	w := &watch{plane: p, stop: cancel, began: time.Now()}
	for _, n := range p.nodes {
		w.wait.Go(func() { w.follow(ctx, n) })
	}
	return w
}

func (w *watch) follow(ctx context.Context, n *node) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	ready := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !n.enter() {
			continue
		}
		err := n.api.Client.Ready(context.WithoutCancel(ctx))
		n.busy.Done()
		w.mu.Lock()
		w.probes++
		if (err == nil) != ready {
			ready = err == nil
			w.turns = append(w.turns, turn{n.name, time.Since(w.began), err})
		}
		w.mu.Unlock()
	}
}

// end stops the watch, adds a row to the table and returns all turns.
func (w *watch) end() turns {
	w.stop()
	w.wait.Wait()
	bad := 0
	var all []string
	for _, t := range w.turns {
		all = append(all, t.String())
		if t.err != nil {
			bad++
		}
	}
	report.row(w.plane.t.Name(), "/readyz asked; turned not ready", fmt.Sprint(w.probes), fmt.Sprint(bad), strings.Join(all, "; "))
	return w.turns
}
