package e2e_test

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// A sample is what one node showed in one second: kube-apiserver by what it answers,
// the plugin by each of its surfaces.
type sample struct {
	at    time.Time
	node  string
	stage string

	ready, live string // "ok", or the checks that fail
	kms         string // the text of /readyz/kms-providers
	write       string // a new secret: "ok", or why not
	read        string // a secret whose seed this kube-apiserver holds
	plugin      map[string]sight
}

// red reports whether the node is not ready because of its plugin. A busy machine
// fails other checks.
func (s sample) red() bool { return strings.Contains(s.ready, "kms-providers") }

// A recorder takes a sample of every node each second, and keeps them: in memory for
// what a test wants to know, and as a file for people.
type recorder struct {
	began time.Time
	held  stack.Object // read all the time
	wait  sync.WaitGroup
	stop  context.CancelFunc

	mu      sync.Mutex
	stage   string
	samples []sample
	file    *os.File
	csv     *csv.Writer
	failed  error // to write the file
}

// record begins to sample all nodes. Its file is bin/e2e/NAME.csv.
func (p *controlPlane) record(name string) *recorder {
	p.t.Helper()
	dir := filepath.Join(programs.root, "bin", "e2e")
	require.NoError(p.t, os.MkdirAll(dir, 0o755))
	file, err := os.Create(filepath.Join(dir, name+".csv"))
	require.NoError(p.t, err)
	r := &recorder{began: time.Now(), stage: "calm", held: secret("held"), file: file, csv: csv.NewWriter(file)}
	header := []string{"time", "second", "node", "stage", "readyz", "livez", "kms-providers", "write", "read"}
	for _, s := range surfaces {
		header = append(header, s.name)
	}
	require.NoError(p.t, r.csv.Write(header))

	require.NoError(p.t, p.nodes[0].api.Client.Create(p.t.Context(), r.held))
	for _, n := range p.nodes {
		require.NoError(p.t, n.check(p.t.Context(), r.held), n.name)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	r.stop = cancel
	for i, n := range p.nodes {
		r.wait.Go(func() { r.follow(ctx, n, i) })
	}
	p.t.Cleanup(func() { r.end(p.t) })
	return r
}

// end stops the recorder, which a test may do early.
func (r *recorder) end(t *testing.T) {
	r.stop()
	r.wait.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return
	}
	r.csv.Flush()
	require.NoError(t, errors.Join(r.failed, r.csv.Error(), r.file.Close()), "%s could not be written", r.file.Name())
	r.file = nil
}

func (r *recorder) follow(ctx context.Context, n *node, index int) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if n.enter() {
			s := r.sample(ctx, n, fmt.Sprintf("tick-%d-%d", index, i))
			n.busy.Done()
			if ctx.Err() == nil {
				r.add(s)
			}
		}
	}
}

// sample asks everything at the same time, so that what hangs delays nothing else.
func (r *recorder) sample(ctx context.Context, n *node, name string) sample {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s := sample{at: time.Now(), node: n.name, plugin: map[string]sight{}}
	var wait sync.WaitGroup
	ask := func(into *string, do func() error) {
		wait.Go(func() {
			*into = "ok"
			if err := do(); err != nil {
				*into = failing(err)
			}
		})
	}
	ask(&s.ready, func() error { return n.api.Client.Ready(ctx) })
	ask(&s.live, func() error { return n.api.Client.Live(ctx) })
	ask(&s.kms, func() error { return n.api.Client.KMSReady(ctx) })
	ask(&s.write, func() error { return n.api.Client.Create(ctx, secret(name)) })
	ask(&s.read, func() error { return n.check(ctx, r.held) })
	var mu sync.Mutex
	for _, f := range surfaces {
		wait.Go(func() {
			seen := f.look(ctx, n)
			mu.Lock()
			defer mu.Unlock()
			s.plugin[f.name] = seen
		})
	}
	wait.Wait()
	return s
}

// failing is a failure in short: of a health page the checks that fail, else the text.
func failing(err error) string {
	var checks []string
	for line := range strings.Lines(err.Error()) {
		if check, ok := strings.CutPrefix(line, "[-]"); ok {
			checks = append(checks, strings.TrimSpace(check))
		}
	}
	if len(checks) > 0 {
		return oneLine(strings.Join(checks, "; "))
	}
	return oneLine(err.Error())
}

func (r *recorder) add(s sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.stage = r.stage
	r.samples = append(r.samples, s)
	row := []string{
		s.at.Format("15:04:05.000"), fmt.Sprintf("%.1f", s.at.Sub(r.began).Seconds()), s.node, s.stage,
		s.ready, s.live, s.kms, s.write, s.read,
	}
	for _, f := range surfaces {
		row = append(row, s.plugin[f.name].text)
	}
	r.failed = errors.Join(r.failed, r.csv.Write(row))
	r.csv.Flush() // a test that is killed leaves what it saw
}

// begin names what happens from now on, and returns when that is.
func (r *recorder) begin(stage string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stage = stage
	return time.Now()
}

// since returns the samples that began later; of one node, or of all for "".
func (r *recorder) since(from time.Time, node string) (found []sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.samples {
		if s.at.After(from) && (node == "" || node == s.node) {
			found = append(found, s)
		}
	}
	return found
}
