package e2e_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// TestOutage_OneCutOff cuts one plugin of three off. That is nobody's business until
// another kube-apiserver writes under a seed that the cut-off node cannot open: then the
// traffic has to go elsewhere.
func TestOutage_OneCutOff(t *testing.T) {
	t.Parallel()
	var way *relay
	r := newTrial(t, "one-cut-off", planeConfig{nodes: 3, wire: func(l *lab, node string, c *stack.PluginConfig) {
		if node == "node-2" {
			way = newRelay(t, l.vault.ProxyURL())
			way.use(c)
		}
	}})
	peer, other, lone := r.nodes[0], r.nodes[1], r.nodes[2]
	from := r.begin("cut off")
	way.cut()
	r.await(lone, "right reason everywhere on the one", from, seenWithin, all(shows(unreachable, true), exits(exitDegraded)))
	r.pass(from, times().outage)
	r.undisturbed("all three serve", from)
	r.hold("the other two are well", from, []*node{peer, other}, well)

	require.NoError(t, peer.restartServer(t.Context()))
	// From its first write on, which the record makes.
	restarted := r.begin("cut off, and a peer writes under a new seed")
	r.await(lone, "not ready, and says why", restarted, 30*time.Second, all(shows(unreachable, false), red, cutOff))
	began := time.Now()
	before := r.counts(lone)
	r.pass(began, 20*time.Second)
	after := r.counts(lone)
	seconds := time.Since(began).Seconds()
	r.count("vault calls of the one in 20 s", after.calls-before.calls, seconds+2)
	failed, quick := after.decrypts-before.decrypts, after.quick-before.quick
	require.Greater(t, failed, 10.0, "kube-apiserver repeats a failing Decrypt")
	r.count("failing Decrypts that took more than 5 ms", failed-quick, 0.02*failed)
	r.count("failing Decrypts in 20 s", failed, 10_000)
	r.hold("the cut-off node stays not ready", began, []*node{lone}, red)
	r.undisturbed("no request through the other two fails", from, peer, other)

	way.mend()
	r.healed("one was cut off")
	require.NoError(t, lone.list(t.Context(), []stack.Object{r.held}))
	r.undisturbed("no request through the other two fails, to the end", from, peer, other)
}

// A tally is what a plugin has counted so far.
type tally struct{ calls, decrypts, quick float64 }

func (r *trial) counts(n *node) tally {
	r.t.Helper()
	page, err := n.plugin.Page(r.t.Context(), n.plugin.MetricsURL)
	require.NoError(r.t, err)
	return tally{
		calls:    sum(r.t, page, "azure_kms_vault_requests_total"),
		decrypts: sum(r.t, page, "azure_kms_request_duration_seconds_count", `operation="decrypt"`),
		quick:    sum(r.t, page, "azure_kms_request_duration_seconds_bucket", `operation="decrypt"`, `le="0.005"`),
	}
}

// sum adds up the series of a metric that have all of some labels.
func sum(t *testing.T, page, name string, labels ...string) (total float64) {
	t.Helper()
	for line := range strings.Lines(page) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(series, name+"{") || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(series, l) }) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		require.NoError(t, err, line)
		total += n
	}
	return total
}

// count adds a row to the table and holds a count to its bound.
func (r *trial) count(what string, n, atMost float64) {
	r.t.Helper()
	report.row(r.t.Name(), what, fmt.Sprint(int(n)), "0", fmt.Sprintf("at most %.0f", atMost))
	require.LessOrEqual(r.t, n, atMost, what)
}
