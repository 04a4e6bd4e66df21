package e2e_test

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
	"azure-kms-plugin/test/vault"
)

func find(ctx context.Context) (err error) {
	if programs.root, err = stack.Root(); err != nil {
		return err
	}
	if programs.plugin, err = stack.PluginBinary("", programs.root); err != nil {
		return err
	}
	programs.kube, err = stack.Kube(ctx, programs.root, os.Stderr)
	return err
}

const (
	vaultName = "kvlab"
	keyName   = "k1"
)

// A lab is an emulated vault with one key.
type lab struct {
	t         *testing.T
	dir       string // short, since sockets are in it
	vault     *vault.Server
	version   string // of the key
	azureJSON string
}

// newLab starts the emulator.
func newLab(t *testing.T) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-")
	require.NoError(t, err)
	l := &lab{t: t, dir: dir}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the logs are in %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	l.vault, err = vault.Start(vault.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { l.vault.Close() })
	// A vault's word on a version that is some minutes old is taken with caution.
	l.version, err = l.vault.Vault(vaultName).CreateKey(keyName, vault.KeyOptions{Bits: 2048, Created: time.Now().Add(-time.Hour)})
	require.NoError(t, err)
	l.azureJSON, err = l.vault.AzureJSON(dir)
	require.NoError(t, err)
	return l
}

// newPlugin describes a plugin that has its log, its socket and its state in
// dir; the test starts it. Without a version it is not pinned to one. change may be nil.
func (l *lab) newPlugin(dir, version string, change func(*stack.PluginConfig)) *stack.Plugin {
	l.t.Helper()
	cfg := stack.PluginConfig{
		Bin: programs.plugin, Dir: dir,
		Vault: vaultName, Key: keyName, Version: version,
		AzureJSON: l.azureJSON, Socket: filepath.Join(dir, "azurekmsactive.socket"), Env: l.vault.Env(),
	}
	if change != nil {
		change(&cfg)
	}
	p, err := stack.NewPlugin(cfg)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { p.Kill() })
	return p
}

func (l *lab) keyID() string { return stack.KeyID(vaultName, keyName, l.version) }

// A cluster is a control plane of one node.
type cluster struct {
	*controlPlane
	*node
}

// newCluster starts etcd and describes the rest; the test starts that.
// timeout is that of the provider entry.
func newCluster(t *testing.T, timeout time.Duration) *cluster {
	t.Helper()
	p := newControlPlane(t, planeConfig{nodes: 1, timeout: timeout})
	return &cluster{controlPlane: p, node: p.nodes[0]}
}

// useManifest has kube-apiserver read the configuration that the project ships,
// with only the socket moved.
func (c *cluster) useManifest() {
	c.t.Helper()
	const endpoint = "unix:///opt/azurekms.socket"
	text, err := os.ReadFile("../../manifests/encryption-configuration.yaml")
	require.NoError(c.t, err)
	require.Equal(c.t, 1, strings.Count(string(text), endpoint))
	moved := strings.Replace(string(text), endpoint, c.plugin.Endpoint, 1)
	require.NoError(c.t, os.WriteFile(c.config, []byte(moved), 0o600))
	c.provider = "azure"
}

// secret and configMap make objects whose content follows from their name.
func secret(name string) stack.Object {
	return stack.Secret(name, map[string][]byte{"password": []byte(plaintext(name))})
}

func configMap(name string) stack.Object {
	return stack.ConfigMap(name, map[string]string{"settings": plaintext(name)})
}

func plaintext(name string) string { return "plaintext-of-" + name }

// inEtcd returns every secret and configmap as it lies in etcd, taken apart.
// It fails the test unless each is encrypted, under this key and as the
// plugin promises.
func (c *cluster) inEtcd() map[string]stack.Stored {
	c.t.Helper()
	found := c.stored()
	for key, s := range found {
		require.Equal(c.t, c.keyID(), s.KeyID, key)
		require.Equal(c.t, map[string][]byte{
			"version.azure.akv.io":     []byte("1"),
			"algorithm.azure.akv.io":   []byte("RSA-OAEP-256"),
			"key-version.azure.akv.io": []byte(c.version),
		}, s.Annotations, key)
		block, err := base64.RawURLEncoding.Strict().DecodeString(string(s.Seed))
		require.NoError(c.t, err, "%s: the seed is not in the format of Azure/kubernetes-kms", key)
		require.Len(c.t, block, 2048/8, key)
	}
	return found
}
