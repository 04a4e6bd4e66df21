package e2e_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"azure-kms-plugin/test/stack"
)

// A planeConfig says what the nodes of a control plane have in common.
type planeConfig struct {
	nodes int // zero means three
	// timeout is that of the provider entry; zero leaves it to kube-apiserver.
	timeout time.Duration
	// unpinned plugins are told no key version. The provider entry then keeps
	// its name when the key is rotated.
	unpinned bool
	args     []string // flags of each plugin beyond those of HyperShift
	// statusFile has each plugin keep its status document as a file.
	statusFile bool
	// wire has the last word on how the plugin of a node is started; nil for nobody.
	wire func(l *lab, node string, c *stack.PluginConfig)
}

// A controlPlane is a lab with one etcd and some nodes over it.
type controlPlane struct {
	*lab
	provider string // the name of the provider entry
	etcd     *stack.Etcd
	kv       *clientv3.Client
	nodes    []*node
	loads    int // so far; objects are named after them
}

// newControlPlane starts the vault and etcd and describes the nodes; the test
// starts those, with start or one by one.
func newControlPlane(t *testing.T, cfg planeConfig) *controlPlane {
	t.Helper()
	p := &controlPlane{lab: newLab(t)}
	version := p.version
	p.provider = stack.HyperShiftProviderName(vaultName, keyName, version)
	if cfg.unpinned {
		version, p.provider = "", "azure"
	}
	if cfg.nodes == 0 {
		cfg.nodes = 3
	}

	var err error
	p.etcd, err = stack.NewEtcd(stack.EtcdConfig{Bin: programs.kube.Etcd, Dir: p.dir})
	require.NoError(t, err)
	t.Cleanup(func() { p.etcd.Kill() })
	require.NoError(t, p.etcd.Start(t.Context()))
	p.kv, err = clientv3.New(clientv3.Config{Endpoints: []string{p.etcd.URL}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { p.kv.Close() })

	for i := range cfg.nodes {
		p.nodes = append(p.nodes, p.newNode(fmt.Sprintf("node-%d", i), version, cfg))
	}
	return p
}

// start starts every plugin, then every kube-apiserver, those of all nodes at
// the same time.
func (p *controlPlane) start() {
	p.t.Helper()
	p.each(func(n *node) error { return n.plugin.Start(p.t.Context()) })
	p.startServers()
}

// startServers starts the kube-apiservers alone.
func (p *controlPlane) startServers() {
	p.t.Helper()
	began := time.Now()
	p.each(func(n *node) error { return n.api.Start(p.t.Context()) })
	report.took(p.t.Name(), "kube-apiservers "+programs.kube.Version+" started together", len(p.nodes), time.Since(began))
}

// each calls do for all nodes at the same time and ends the test if one fails.
func (p *controlPlane) each(do func(*node) error) {
	p.t.Helper()
	failed := make([]error, len(p.nodes))
	var wait sync.WaitGroup
	for i, n := range p.nodes {
		wait.Go(func() {
			if err := do(n); err != nil {
				failed[i] = fmt.Errorf("%s: %w", n.name, err)
			}
		})
	}
	wait.Wait()
	require.NoError(p.t, errors.Join(failed...))
}

// createAll creates secrets and configmaps, by each node in turn.
func (p *controlPlane) createAll(secrets, configMaps int) []stack.Object {
	p.t.Helper()
	var objects []stack.Object
	for i := range secrets {
		objects = append(objects, secret(fmt.Sprintf("secret-%d", i)))
	}
	for i := range configMaps {
		objects = append(objects, configMap(fmt.Sprintf("configmap-%d", i)))
	}
	began := time.Now()
	for i, o := range objects {
		require.NoError(p.t, p.nodes[i%len(p.nodes)].api.Client.Create(p.t.Context(), o))
	}
	report.took(p.t.Name(), "secrets and configmaps created", len(objects), time.Since(began))
	return objects
}

// readAll reads every object through every node.
func (p *controlPlane) readAll(objects []stack.Object) {
	p.t.Helper()
	began := time.Now()
	p.each(func(n *node) error {
		for _, o := range objects {
			if err := n.check(p.t.Context(), o); err != nil {
				return err
			}
		}
		return nil
	})
	report.took(p.t.Name(), "all read again after the restart", len(objects)*len(p.nodes), time.Since(began))
}

// stored returns every secret and configmap as it lies in etcd, taken apart.
// It fails the test unless each is encrypted by the provider.
func (p *controlPlane) stored() map[string]stack.Stored {
	p.t.Helper()
	found := map[string]stack.Stored{}
	for _, prefix := range []string{"/registry/secrets/", "/registry/configmaps/"} {
		resp, err := p.kv.Get(p.t.Context(), prefix, clientv3.WithPrefix())
		require.NoError(p.t, err)
		for _, kv := range resp.Kvs {
			key := string(kv.Key)
			s, err := stack.ParseStored(kv.Value)
			require.NoError(p.t, err, key)
			require.Equal(p.t, p.provider, s.Provider, key)
			require.EqualValues(p.t, 1, s.SeedType, key)

			clear := plaintext(filepath.Base(key))
			require.False(p.t, bytes.Contains(kv.Value, []byte(clear)), "%s holds its plaintext", key)
			require.False(p.t, bytes.Contains(kv.Value, []byte(base64.StdEncoding.EncodeToString([]byte(clear)))), key)
			found[key] = s
		}
	}
	return found
}

// TestControlPlane has three nodes, each with its own plugin, read what the
// others wrote, before and after each kube-apiserver was restarted.
func TestControlPlane(t *testing.T) {
	p := newControlPlane(t, planeConfig{})
	p.start()
	objects := p.createAll(30, 15)
	watch := p.startWatch()
	load := p.startLoad(50, 200, objects)
	load.await(t, 1000)
	for _, n := range p.nodes {
		require.NoError(t, n.restartServer(t.Context()), n.name)
	}
	load.await(t, 500)
	objects = load.end()
	load.report(t.Name(), "while the kube-apiservers were restarted in turn")
	require.Empty(t, load.writes.failed)
	require.Empty(t, load.reads.failed)
	require.Empty(t, watch.end())
	p.readAll(objects)
	stored := p.stored()
	for _, o := range objects {
		require.True(t, stored[etcdKey(o)].KeyID == p.keyID(), "%s is not under the key", etcdKey(o))
	}
}

func etcdKey(o stack.Object) string {
	if o.Kind == "ConfigMap" {
		return "/registry/configmaps/default/" + o.Metadata.Name
	}
	return "/registry/secrets/default/" + o.Metadata.Name
}
