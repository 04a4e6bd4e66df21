package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHyperShift runs the plugin with exactly HyperShift's arguments under a
// kube-apiserver with exactly HyperShift's provider entry.
func TestHyperShift(t *testing.T) {
	live(t, 35*time.Second, 3)
}

// TestDefaultTimeout runs the same with kube-apiserver's own default timeout,
// which leaves the plugin a tenth of the time.
func TestDefaultTimeout(t *testing.T) {
	live(t, 3*time.Second, 1)
}

// TestPluginStartsLast has kube-apiserver wait for its plugin, as after the
// boot of a node, under the configuration that manifests holds.
func TestPluginStartsLast(t *testing.T) {
	c := newCluster(t, 3*time.Second)
	c.useManifest()
	require.NoError(t, c.api.Launch())
	require.NoError(t, c.api.WaitReady(t.Context(), c.api.Client.Live))
	require.Error(t, c.api.Client.KMSReady(t.Context()))
	require.Error(t, c.api.Client.Create(t.Context(), secret("early")), "without a seed nothing may be written in the clear")

	began := time.Now()
	require.NoError(t, c.plugin.Start(t.Context()))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 90*time.Second, errors.New("not ready 90 s after its plugin"))
	defer cancel()
	require.NoError(t, c.api.WaitReady(ctx, c.api.Client.Ready))
	report.took(t.Name(), "kube-apiserver ready after a plugin that starts last", 1, time.Since(began))
	late := secret("late")
	require.NoError(t, c.api.Client.Create(t.Context(), late))
	require.NoError(t, c.check(t.Context(), late))
	require.Contains(t, c.inEtcd(), etcdKey(late))
}

// live encrypts, loses its plugin under load kills times, restarts
// kube-apiserver, and reads everything back.
func live(t *testing.T, timeout time.Duration, kills int) {
	c := newCluster(t, timeout)
	require.NoError(t, c.plugin.Start(t.Context()))
	began := time.Now()
	require.NoError(t, c.api.Start(t.Context()))
	report.took(t.Name(), "kube-apiserver "+programs.kube.Version+" started", 1, time.Since(began))

	objects := c.createAll(200, 100)
	stored := c.inEtcd()
	for _, o := range objects {
		require.Contains(t, stored, etcdKey(o))
	}
	report.row(t.Name(), "encrypted in etcd, by prefix, key ID and annotations", fmt.Sprint(len(stored)), "0", "")

	load := c.startLoad(20, 50, objects)
	load.await(t, 100)
	for range kills {
		c.killPlugin(load)
	}
	c.stopPlugin(load)
	objects = load.end()
	load.writes.report(t.Name(), fmt.Sprintf("writes while the plugin was killed %d times and stopped once", kills))
	load.reads.report(t.Name(), "reads meanwhile")
	require.Empty(t, load.writes.failed)
	require.Empty(t, load.reads.failed)

	c.vault.ResetCalls()
	began = time.Now()
	require.NoError(t, c.api.Stop())
	require.NoError(t, c.api.Start(t.Context()))
	report.took(t.Name(), "kube-apiserver restarted", 1, time.Since(began))
	c.readAll(objects)
	calls := c.vault.Calls()
	report.row(t.Name(), "vault decrypts for the restart and all reads", fmt.Sprint(calls["decrypt"]), "0", "")
	require.Positive(t, calls["decrypt"], "a restarted kube-apiserver holds no seed")
	c.inEtcd()

	require.NoError(t, c.plugin.Stop(), "a plugin that is asked to stop ends with status 0")
	_, err := os.Lstat(c.socket)
	require.ErrorIs(t, err, os.ErrNotExist, "a plugin that stops takes its socket with it")
}

// killPlugin kills the plugin while load runs, leaves it dead for a while, and
// starts it over the socket file that the dead one left.
func (c *cluster) killPlugin(load *load) {
	c.t.Helper()
	c.plugin.Kill()
	_, err := os.Lstat(c.socket)
	require.NoError(c.t, err, "a killed plugin leaves its socket file")
	_, err = net.Dial("unix", c.socket)
	require.Error(c.t, err, "nobody is behind the file")
	load.await(c.t, 150) // about two seconds

	began := time.Now()
	require.NoError(c.t, c.plugin.Start(c.t.Context()))
	report.took(c.t.Name(), "plugin started over a stale socket", 1, time.Since(began))
	c.awaitKMS(load)
}

// stopPlugin restarts the plugin in good order.
func (c *cluster) stopPlugin(load *load) {
	c.t.Helper()
	require.NoError(c.t, c.plugin.Stop())
	_, err := os.Lstat(c.socket)
	require.ErrorIs(c.t, err, os.ErrNotExist)
	load.await(c.t, 150)
	require.NoError(c.t, c.plugin.Start(c.t.Context()))
	c.awaitKMS(load)
}

// awaitKMS waits until kube-apiserver is content with the new plugin, and for
// some more load.
func (c *cluster) awaitKMS(load *load) {
	c.t.Helper()
	began := time.Now()
	c.awaitPlugin(c.t)
	report.took(c.t.Name(), "kube-apiserver content with the new plugin", 1, time.Since(began))
	load.await(c.t, 70)
}
