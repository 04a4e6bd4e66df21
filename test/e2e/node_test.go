package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// A node is a kube-apiserver and its plugin, with a socket, a state folder and
// an EncryptionConfiguration of their own, as on one control-plane node.
type node struct {
	name   string
	socket string
	config string // path of the EncryptionConfiguration
	// statusFile is where the plugin writes its status document, if told to.
	statusFile string
	command    lastRun // owned by whoever looks at the surfaces
	plugin     *stack.Plugin
	api        *stack.APIServer

	mu   sync.Mutex
	out  bool           // of service; guarded by mu
	busy sync.WaitGroup // requests of a load or a watch
}

// newNode describes a node; nothing runs yet.
func (p *controlPlane) newNode(name, version string, cfg planeConfig) *node {
	p.t.Helper()
	dir := filepath.Join(p.dir, name)
	require.NoError(p.t, os.Mkdir(dir, 0o700))
	n := &node{name: name, config: filepath.Join(dir, "encryption.yaml"), statusFile: filepath.Join(dir, "status.json")}
	n.plugin = p.newPlugin(dir, version, func(c *stack.PluginConfig) {
		c.Args = cfg.args
		if cfg.statusFile {
			c.Args = append(slices.Clone(cfg.args), "--status-file="+n.statusFile)
		}
		if cfg.wire != nil {
			cfg.wire(p.lab, name, c)
		}
	})
	n.socket = n.plugin.Socket()
	require.NoError(p.t, stack.WriteEncryptionConfig(n.config, stack.HyperShiftResources(),
		stack.Provider{Name: p.provider, Endpoint: n.plugin.Endpoint, Timeout: cfg.timeout}))

	var err error
	n.api, err = stack.NewAPIServer(stack.APIServerConfig{
		Bin: programs.kube.APIServer, Dir: filepath.Join(dir, "kube-apiserver"),
		EtcdURL: p.etcd.URL, EncryptionConfig: n.config,
	})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { n.api.Kill() })
	return n
}

// enter begins a request to the node, which ends with busy.Done. It fails when
// the node is out of service, as a load balancer would pass it over then.
func (n *node) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.out {
		n.busy.Add(1)
	}
	return !n.out
}

// drain takes the node out of service and waits for its last request.
func (n *node) drain() {
	n.mu.Lock()
	n.out = true
	n.mu.Unlock()
	n.busy.Wait()
}

// restore puts the node back into service.
func (n *node) restore() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.out = false
}

// restartServer restarts the node's kube-apiserver, out of service meanwhile.
// It then holds no seed, so that whatever it reads asks its plugin.
func (n *node) restartServer(ctx context.Context) error {
	n.drain()
	if err := n.api.Stop(); err != nil {
		return err
	}
	if err := n.api.Start(ctx); err != nil {
		return err
	}
	n.restore()
	return nil
}

// check reads an object through the node and compares.
func (n *node) check(ctx context.Context, want stack.Object) error {
	got, err := n.api.Client.Get(ctx, want.Kind, want.Metadata.Name)
	if err != nil {
		return err
	}
	return same(got, want)
}

func same(got, want stack.Object) error {
	if fmt.Sprint(got.Data, got.Text) != fmt.Sprint(want.Data, want.Text) {
		return fmt.Errorf("%s %s came back changed", want.Kind, want.Metadata.Name)
	}
	return nil
}

// list compares all of the objects with what the node lists. After a restart,
// it has decrypted all that it lists since.
func (n *node) list(ctx context.Context, want []stack.Object) error {
	got := map[string]stack.Object{}
	for _, kind := range []string{"Secret", "ConfigMap"} {
		items, err := n.api.Client.List(ctx, kind)
		if err != nil {
			return err
		}
		for _, o := range items {
			got[etcdKey(o)] = o
		}
	}
	for _, o := range want {
		if err := same(got[etcdKey(o)], o); err != nil {
			return err
		}
	}
	return nil
}

// awaitPlugin waits until kube-apiserver has asked the plugin, as it runs now,
// for its Status and is content.
func (n *node) awaitPlugin(t *testing.T) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, n.api.Client.KMSReady(t.Context()))
		asked, err := n.plugin.Requests(t.Context(), "status")
		require.NoError(c, err)
		require.Positive(c, asked, "kube-apiserver has not yet found the new plugin")
	}, 90*time.Second, 250*time.Millisecond)
}
