package e2e_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// What has to hold, however long a fault lasts.
const (
	seenWithin     = 45 * time.Second // until the right reason is everywhere
	stateWithin    = 60 * time.Second // the same for a key that is disabled or deleted
	refusedWithin  = 4 * time.Minute  // from a loss until kube-apiserver refuses to write
	healedWithin   = 60 * time.Second // from a repair until all is well everywhere
	keyStateGrace  = 15 * time.Second
	serverPoll     = 20 * time.Second // between two calls of Status by kube-apiserver
	shortestOutage = serverPoll + 5*time.Second
)

var long = flag.Bool("long", false, "let faults last as long as in the field: outages of ten minutes, the default denial grace")

// A schedule is how long things last.
type schedule struct {
	outage      time.Duration // that nobody may notice; it lasts until the right reason is seen at least
	denialGrace time.Duration
	outageGrace time.Duration // where it is to run out
	planes      int           // control planes among which kinds of faults are divided
}

func times() schedule {
	if *long {
		return schedule{outage: 10 * time.Minute, denialGrace: 10 * time.Minute, outageGrace: 2 * time.Minute, planes: 5}
	}
	return schedule{outage: shortestOutage, denialGrace: 30 * time.Second, outageGrace: 30 * time.Second, planes: 4}
}

// A trial is a control plane to which things happen, and the record of that.
type trial struct {
	*controlPlane
	*recorder
	names *resolver // that the plugins ask, if they have their own
}

// graces are the flags for how long failures are borne; zero leaves a default.
func graces(outage, denial time.Duration) (args []string) {
	if outage != 0 {
		args = append(args, "--outage-grace="+outage.String())
	}
	if denial != 0 {
		args = append(args, "--denial-grace="+denial.String())
	}
	return args
}

// newTrial starts a control plane and its record. It waits until all is well.
func newTrial(t *testing.T, name string, cfg planeConfig) *trial {
	t.Helper()
	cfg.args = append(slices.Clone(cfg.args), "--log-format-json")
	cfg.statusFile = true
	p := newControlPlane(t, cfg)
	p.start()
	r := &trial{controlPlane: p, recorder: p.record(name)}
	for _, n := range p.nodes {
		r.await(n, "all is well at first", time.Now(), healedWithin, well)
	}
	return r
}

// newTrialWithNames is newTrial with a plugin that asks a resolver of its own.
func newTrialWithNames(t *testing.T, name, plugin string, cfg planeConfig) *trial {
	t.Helper()
	names := newResolver(t, plugin)
	cfg.wire = func(_ *lab, _ string, c *stack.PluginConfig) { names.use(c) }
	r := newTrial(t, name, cfg)
	r.names = names
	return r
}

// await waits for the first sample after from in which a condition holds, and returns
// how long after from that was.
func (r *trial) await(n *node, what string, from time.Time, within time.Duration, holds condition) time.Duration {
	r.t.Helper()
	for next := 0; ; time.Sleep(100 * time.Millisecond) {
		samples := r.since(from, n.name)
		for ; next < len(samples); next++ {
			after := samples[next].at.Sub(from)
			lacks := holds(samples[next])
			if len(lacks) == 0 {
				require.LessOrEqual(r.t, after, within+time.Second, "%s, %s", n.name, what)
				r.t.Logf("%s: %s: after %v", n.name, what, round(after))
				report.row(r.t.Name(), what, "1", "0", "after "+after.Round(time.Second).String())
				return after
			}
			require.LessOrEqual(r.t, after, within, "%s, %s: %s", n.name, what, strings.Join(lacks, "; "))
		}
		// The samples themselves may be late on a busy machine, but not for ever.
		require.Less(r.t, time.Since(from), within+30*time.Second, "%s, %s: no sample", n.name, what)
	}
}

// undisturbed demands that since from nothing was noticed.
func (r *trial) undisturbed(what string, from time.Time, nodes ...*node) {
	r.t.Helper()
	r.hold(what, from, nodes, quiet)
}

// readable demands that no read of a seed that kube-apiserver holds has failed.
func (r *trial) readable(from time.Time, nodes ...*node) {
	r.t.Helper()
	r.hold("reads go on", from, nodes, func(s sample) (lacks []string) {
		if s.read != "ok" {
			lacks = append(lacks, "read "+s.read)
		}
		return lacks
	})
}

// hold demands a condition of every sample since from; of all nodes if none is named.
func (r *trial) hold(what string, from time.Time, nodes []*node, holds condition) {
	r.t.Helper()
	if len(nodes) == 0 {
		nodes = r.nodes
	}
	count := 0
	var bad []string
	for _, n := range nodes {
		samples := r.since(from, n.name)
		require.NotEmpty(r.t, samples, n.name)
		count += len(samples)
		for _, s := range samples {
			if lacks := holds(s); len(lacks) > 0 {
				bad = append(bad, fmt.Sprintf("%s, second %.0f: %s", n.name, s.at.Sub(r.began).Seconds(), strings.Join(lacks, "; ")))
			}
		}
	}
	report.row(r.t.Name(), what, fmt.Sprint(count), fmt.Sprint(len(bad)), "seconds")
	require.Empty(r.t, bad, "%s", what)
}

// fileName makes a part of a file's name.
func fileName(text string) string { return strings.ReplaceAll(strings.ToLower(text), " ", "-") }

// pass waits until something has lasted for d since from.
func (r *trial) pass(from time.Time, d time.Duration) {
	select {
	case <-r.t.Context().Done():
	case <-time.After(time.Until(from.Add(d))):
	}
}

// healed waits until all is well again after a repair, everywhere.
func (r *trial) healed(what string) {
	r.t.Helper()
	from := r.begin("after " + what)
	for _, n := range r.nodes {
		r.await(n, what+": healed", from, healedWithin, all(well, exits(exitUsable)))
	}
}
