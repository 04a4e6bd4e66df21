package e2e_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// oldSeenWithin is how long the state of an old version that is in use may go unnoticed:
// it is looked at every five minutes.
const oldSeenWithin = 6 * time.Minute

// TestOutage_OldVersionDisabled disables an old version of the key that data is under.
// While the kube-apiservers hold its seed nothing happens, and then one is restarted.
func TestOutage_OldVersionDisabled(t *testing.T) {
	t.Parallel()
	r := newTrial(t, "old-version-disabled", followers(2))
	restarted, other := r.nodes[0], r.nodes[1]
	old, began := r.version, r.begin("rotated")
	rotation := r.rotate()
	r.awaitPlugins(rotation)
	r.awaitServers(rotation)
	r.undisturbed("the rotation", began)

	from := r.begin("old version disabled")
	require.NoError(t, r.key().SetEnabled(keyName, old, false))
	for _, n := range r.nodes {
		r.await(n, "critical alarm that names it, everywhere", from, oldSeenWithin, alarmed(keyDisabled, old))
		d, err := n.document(t.Context())
		require.NoError(t, err)
		require.Equal(t, "critical", d.Alarms[0].Severity)
		require.Equal(t, old, d.Alarms[0].Version)
		require.Contains(t, d.Alarms[0].Text, "restart no kube-apiserver")
		require.Equal(t, "Usable", d.Phase, "the state of an old version alone fails nothing")
	}
	r.pass(time.Now(), times().outage)
	r.undisturbed("no write and no read fails, /readyz is green", from)

	restarted.drain()
	require.NoError(t, restarted.api.Stop())
	later := r.begin("one kube-apiserver restarted")
	require.NoError(t, restarted.api.Launch())
	require.NoError(t, restarted.api.WaitReady(t.Context(), answers(restarted.api.Client.Live)))
	r.pass(time.Now(), shortestOutage)
	require.Error(t, restarted.api.Client.Ready(t.Context()))
	_, err := restarted.api.Client.List(t.Context(), "Secret")
	require.Error(t, err, "LIST on the restarted kube-apiserver")
	require.Error(t, restarted.api.Client.Watch(t.Context(), "Secret"), "WATCH on the restarted kube-apiserver")
	report.row(t.Name(), "restarted: not ready, LIST and WATCH fail", "3", "0", failing(err))
	restarted.restore()
	r.await(restarted, "/status still says why", later, seenWithin, alarmed(keyDisabled, old))
	r.undisturbed("the other serves", later, other)
	_, err = other.api.Client.List(t.Context(), "Secret")
	require.NoError(t, err)

	require.NoError(t, r.key().SetEnabled(keyName, old, true))
	r.healed("an old version was disabled")
	require.NoError(t, restarted.api.Client.Watch(t.Context(), "Secret"))
	require.NoError(t, restarted.check(t.Context(), r.held))
}

// answers makes a probe succeed as soon as a kube-apiserver answers, whatever it says.
func answers(probe func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := probe(ctx)
		if _, ok := errors.AsType[*stack.APIError](err); ok {
			return nil
		}
		return err
	}
}
