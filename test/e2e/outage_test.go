package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/vault"
)

// A kind is a way in which the vault cannot be reached.
type kind struct {
	name, reason string
	begin        func(*trial) (end func())
}

// fails is a kind that the emulator plays.
func fails(name, reason string, f vault.Fault) kind {
	return kind{name, reason, func(r *trial) func() {
		id := r.vault.AddFault(f)
		return func() { r.vault.RemoveFault(id) }
	}}
}

// kinds are those of the first scenario.
func kinds() []kind {
	return []kind{
		fails("dropped", unreachable, vault.Fault{Drop: true}),
		fails("refused", unreachable, vault.Fault{Refuse: true}),
		fails("hanging", unreachable, vault.Fault{Hang: true}),
		fails("reset", unreachable, vault.Fault{Reset: true}),
		fails("5xx", unreachable, vault.Fault{Status: 503}),
		fails("429", throttled, vault.Fault{Status: 429}),
		fails("429 with Retry-After", throttled, vault.Fault{Status: 429, RetryAfter: 20 * time.Second}),
		{"DNS time-out", unreachable, func(r *trial) func() {
			r.names.answer(silence)
			r.hangUp()
			return func() { r.names.answer(nameFound) }
		}},
		{"TLS", unreachable, func(r *trial) func() {
			id := r.vault.AddFault(vault.Fault{TLS: vault.TLSUntrusted})
			r.hangUp()
			return func() { r.vault.RemoveFault(id) }
		}},
		{"token endpoint down", credentialsUnavailable, func(r *trial) func() {
			id := r.vault.AddFault(vault.Fault{Op: vault.OpToken, Status: 503})
			r.vault.RevokeTokens()
			return func() { r.vault.RemoveFault(id) }
		}},
	}
}

// TestOutage_Borne makes the vault unreachable in every way there is. kube-apiserver
// must not notice, and everybody else must be told why.
func TestOutage_Borne(t *testing.T) {
	t.Parallel()
	plugin := buildWithResolver(t)
	left := kinds()
	planes := times().planes
	for i := range planes {
		mine := left[i*len(left)/planes : (i+1)*len(left)/planes]
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			r := newTrialWithNames(t, fmt.Sprintf("borne-%d", i), plugin, planeConfig{nodes: 1})
			for _, k := range mine {
				r.borne(k)
			}
		})
	}
}

func (r *trial) borne(k kind) {
	n := r.nodes[0]
	from := r.begin(k.name)
	end := k.begin(r)
	r.await(n, k.name+": right reason everywhere", from, seenWithin, all(shows(k.reason, true), exits(exitDegraded)))
	r.pass(from, times().outage)
	end()
	r.healed(k.name)
	r.undisturbed(k.name+": no write and no read fails, /readyz is green", from)
}

// TestOutage_PastGrace has an outage outlast its grace, which is short here.
func TestOutage_PastGrace(t *testing.T) {
	t.Parallel()
	grace := times().outageGrace
	r := newTrial(t, "past-grace", planeConfig{nodes: 1, args: graces(grace, 0)})
	n := r.nodes[0]
	from := r.begin("refused")
	id := r.vault.AddFault(vault.Fault{Refuse: true})
	reason := unreachable
	r.await(n, "right reason everywhere", from, seenWithin, shows(reason, true))
	lost := from.Add(r.await(n, "obeyed as a loss", from, seenWithin+grace, all(shows(reason, false), exits(exitLost))))
	r.await(n, "writes are refused after the grace", lost, refusedWithin, refuses(reason))
	r.vault.RemoveFault(id)
	r.healed("the outage")
	r.readable(from)
}

// TestOutage_PluginRestarts restarts the plugin while the vault is away.
func TestOutage_PluginRestarts(t *testing.T) {
	t.Parallel()
	r := newTrial(t, "restart", planeConfig{nodes: 1})
	n := r.nodes[0]
	from := r.begin("refused")
	id := r.vault.AddFault(vault.Fault{Refuse: true})
	reason := unreachable
	r.await(n, "right reason everywhere", from, seenWithin, shows(reason, true))
	for _, end := range []func() error{n.plugin.Stop, func() error { n.plugin.Kill(); return nil }} {
		require.NoError(t, end())
		restarted := r.begin("plugin restarted")
		require.NoError(t, n.plugin.Launch())
		first, err := r.firstStatus(n)
		require.NoError(t, err, "the first Status after a restart")
		require.Equal(t, "ok", first)
		report.took(t.Name(), "first Status is ok, from the state file", 1, time.Since(restarted))
		r.await(n, "right reason everywhere after the restart", restarted, seenWithin, shows(reason, true))
		r.pass(restarted, shortestOutage)
	}
	r.vault.RemoveFault(id)
	r.healed("the outage")
	r.undisturbed("no write and no read fails, /readyz is green", from)
}

// firstStatus calls Status until the plugin's socket answers, with whatever that is.
func (r *trial) firstStatus(n *node) (string, error) {
	r.t.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		resp, err := n.status(r.t.Context())
		if err == nil {
			return resp.Healthz, nil
		}
		if !isUnserved(err) || time.Since(began) > 10*time.Second {
			return "", err
		}
	}
}
