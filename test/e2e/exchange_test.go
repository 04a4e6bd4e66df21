package e2e_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
	"azure-kms-plugin/test/standin"
)

// TestExchange replaces either existing plugin by this one and the other way
// round, replica by replica, while three kube-apiservers are written to and
// read from. Case R06.
func TestExchange(t *testing.T) {
	for _, format := range []standin.Format{standin.Azure, standin.OpenShift} {
		t.Run(string(format), func(t *testing.T) {
			x := newExchange(t, format)
			x.each(func(n *node) error { return x.old[n].Start() })
			x.startServers()
			objects := x.createAll(30, 15)
			objects = x.throughout("old to new", objects)
			x.throughout("new to old", objects)
		})
	}
}

// An exchange is a control plane whose nodes have an old plugin as well, for
// the same socket and the same key version.
type exchange struct {
	*controlPlane
	old     map[*node]*standin.Plugin
	gone    series // how long the sockets were
	crossed int    // objects so far
}

func newExchange(t *testing.T, format standin.Format) *exchange {
	t.Helper()
	x := &exchange{
		controlPlane: newControlPlane(t, planeConfig{args: []string{"--ciphertext-format=" + string(format)}}),
		old:          map[*node]*standin.Plugin{},
	}
	for _, n := range x.nodes {
		p, err := standin.New(standin.Config{
			Format: format, Server: x.vault, Vault: vaultName, Key: keyName, Version: x.version, Socket: n.socket,
		})
		require.NoError(t, err)
		t.Cleanup(p.Stop)
		x.old[n] = p
	}
	return x
}

// throughout swaps the plugin of every node under load, from whichever is
// there to the other. It returns what exists afterwards.
//
// kube-apiserver keeps its seed over the swap, and what it has decrypted once.
// A restarted one has a new seed, which all others then have to decrypt, and
// has to decrypt theirs.
func (x *exchange) throughout(direction string, objects []stack.Object) []stack.Object {
	x.t.Helper()
	a, b, c := x.nodes[0], x.nodes[1], x.nodes[2]
	pids := []int{b.api.PID(), c.api.PID()}
	x.gone = series{}
	watch := x.startWatch()
	load := x.startLoad(50, 200, objects)
	load.await(x.t, 250)

	x.swap(a, load)
	x.swap(b, load)
	x.restart(a, c) // one with the new plugin, one with the one that is left
	crossed := x.cross()
	require.GreaterOrEqual(x.t, x.decrypts(b), 2, "the seeds of both others, by the plugin that was swapped in")
	require.Equal(x.t, pids[0], b.api.PID(), "no restart was needed for that")

	pids[1] = c.api.PID()
	x.swap(c, load)
	x.restart(a, b)
	crossed = append(crossed, x.cross()...)
	require.GreaterOrEqual(x.t, x.decrypts(c), 2)
	require.Equal(x.t, pids[1], c.api.PID())

	objects = append(load.end(), crossed...)
	load.report(x.t.Name(), direction)
	x.gone.report(x.t.Name(), "socket gone, "+direction)
	watch.end()
	require.Empty(x.t, load.writes.failed)
	require.Empty(x.t, load.reads.failed)

	x.restart(c)
	began := time.Now()
	x.each(func(n *node) error { return n.list(x.t.Context(), objects) })
	report.took(x.t.Name(), "all listed by all restarted kube-apiservers", len(x.nodes)*len(objects), time.Since(began))
	x.reportSeeds(direction)
	return objects
}

// swap puts the other plugin in the place of the one that serves the node. In
// between there is none for about three seconds. The node has to be ready
// before the next one's turn comes.
func (x *exchange) swap(n *node, load *load) {
	x.t.Helper()
	old, began := x.old[n], time.Now()
	if x.isNew(n) {
		require.NoError(x.t, n.plugin.Stop())
		load.await(x.t, 750)
		require.NoError(x.t, old.Start())
	} else {
		old.Stop()
		load.await(x.t, 750)
		require.NoError(x.t, n.plugin.Start(x.t.Context()))
	}
	x.gone.took = append(x.gone.took, time.Since(began))
	require.Eventually(x.t, func() bool { return n.api.Client.Ready(x.t.Context()) == nil }, time.Minute, 100*time.Millisecond)
}

// restart restarts the kube-apiservers of some nodes at the same time.
func (x *exchange) restart(nodes ...*node) {
	x.t.Helper()
	var wait sync.WaitGroup
	began := time.Now()
	for _, n := range nodes {
		wait.Go(func() { assert.NoError(x.t, n.restartServer(x.t.Context()), n.name) })
	}
	wait.Wait()
	require.False(x.t, x.t.Failed())
	report.took(x.t.Name(), "kube-apiservers restarted", len(nodes), time.Since(began))
}

// cross writes an object through every node and reads it through all of them.
func (x *exchange) cross() []stack.Object {
	x.t.Helper()
	var objects []stack.Object
	for _, n := range x.nodes {
		x.crossed++
		o := secret(fmt.Sprintf("cross-%d", x.crossed))
		require.NoError(x.t, n.api.Client.Create(x.t.Context(), o), n.name)
		objects = append(objects, o)
	}
	x.each(func(n *node) error {
		for _, o := range objects {
			if err := n.check(x.t.Context(), o); err != nil {
				return err
			}
		}
		return nil
	})
	return objects
}

// decrypts is how often the plugin that serves the node has decrypted.
func (x *exchange) decrypts(n *node) int {
	x.t.Helper()
	if !x.isNew(n) {
		return x.old[n].Requests("decrypt")
	}
	count, err := n.plugin.Requests(x.t.Context(), "decrypt")
	require.NoError(x.t, err)
	return count
}

// isNew reports whether this project's plugin serves the node.
func (x *exchange) isNew(n *node) bool { return n.plugin.Process != nil && n.plugin.Running() }

// reportSeeds counts the seeds in etcd by who wrapped them: this plugin alone
// says with which key version. There have to be some of both.
func (x *exchange) reportSeeds(direction string) {
	x.t.Helper()
	seeds := map[bool][]string{}
	for key, s := range x.stored() {
		require.Equal(x.t, x.keyID(), s.KeyID, key)
		_, ours := s.Annotations["key-version.azure.akv.io"]
		if !slices.Contains(seeds[ours], string(s.Seed)) {
			seeds[ours] = append(seeds[ours], string(s.Seed))
		}
	}
	require.NotEmpty(x.t, seeds[true])
	require.NotEmpty(x.t, seeds[false])
	report.row(x.t.Name(), "seeds in etcd, "+direction, fmt.Sprintf("%d+%d", len(seeds[false]), len(seeds[true])), "0", "old+new")
}
