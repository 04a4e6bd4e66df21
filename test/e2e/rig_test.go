package e2e_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

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

// A lab is an emulated vault with one key, and a plugin that is pinned to its version.
type lab struct {
	t       *testing.T
	dir     string // short, since the socket is in it
	vault   *vault.Server
	version string
	plugin  *stack.Plugin
	socket  string
}

// newLab starts the emulator and describes the plugin; the test starts it.
func newLab(t *testing.T) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-")
	require.NoError(t, err)
	l := &lab{t: t, dir: dir, socket: filepath.Join(dir, "azurekmsactive.socket")}
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
	l.version, err = l.vault.Vault(vaultName).CreateKey(keyName, vault.KeyOptions{Bits: 2048})
	require.NoError(t, err)
	azureJSON, err := l.vault.AzureJSON(dir)
	require.NoError(t, err)
	l.plugin, err = stack.NewPlugin(stack.PluginConfig{
		Bin: programs.plugin, Dir: dir,
		Vault: vaultName, Key: keyName, Version: l.version,
		AzureJSON: azureJSON, Socket: l.socket, Env: l.vault.Env(),
	})
	require.NoError(t, err)
	t.Cleanup(func() { l.plugin.Kill() })
	return l
}

func (l *lab) keyID() string { return stack.KeyID(vaultName, keyName, l.version) }

// A cluster is a lab with a kube-apiserver and its etcd.
type cluster struct {
	*lab
	provider string
	etcd     *stack.Etcd
	api      *stack.APIServer
	kv       *clientv3.Client
}

// newCluster starts etcd and describes the rest; the test starts that.
// timeout is that of the provider entry.
func newCluster(t *testing.T, timeout time.Duration) *cluster {
	t.Helper()
	c := &cluster{lab: newLab(t)}

	c.provider = stack.HyperShiftProviderName(vaultName, keyName, c.version)
	config := c.encryptionConfig()
	require.NoError(t, stack.WriteEncryptionConfig(config, stack.HyperShiftResources(),
		stack.Provider{Name: c.provider, Endpoint: c.plugin.Endpoint, Timeout: timeout}))

	var err error
	c.etcd, err = stack.NewEtcd(stack.EtcdConfig{Bin: programs.kube.Etcd, Dir: c.dir})
	require.NoError(t, err)
	t.Cleanup(func() { c.etcd.Kill() })
	require.NoError(t, c.etcd.Start(t.Context()))

	c.api, err = stack.NewAPIServer(stack.APIServerConfig{
		Bin: programs.kube.APIServer, Dir: filepath.Join(c.dir, "kube-apiserver"),
		EtcdURL: c.etcd.URL, EncryptionConfig: config,
	})
	require.NoError(t, err)
	t.Cleanup(func() { c.api.Kill() })

	c.kv, err = clientv3.New(clientv3.Config{Endpoints: []string{c.etcd.URL}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { c.kv.Close() })
	return c
}

func (c *cluster) encryptionConfig() string { return filepath.Join(c.dir, "encryption.yaml") }

// useManifest has kube-apiserver read the configuration that the project ships,
// with only the socket moved.
func (c *cluster) useManifest() {
	c.t.Helper()
	const endpoint = "unix:///opt/azurekms.socket"
	text, err := os.ReadFile("../../manifests/encryption-configuration.yaml")
	require.NoError(c.t, err)
	require.Equal(c.t, 1, strings.Count(string(text), endpoint))
	moved := strings.Replace(string(text), endpoint, c.plugin.Endpoint, 1)
	require.NoError(c.t, os.WriteFile(c.encryptionConfig(), []byte(moved), 0o600))
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

// check reads an object through the API and compares.
func (c *cluster) check(ctx context.Context, want stack.Object) error {
	got, err := c.api.Client.Get(ctx, want.Kind, want.Metadata.Name)
	if err != nil {
		return err
	}
	if fmt.Sprint(got.Data, got.Text) != fmt.Sprint(want.Data, want.Text) {
		return fmt.Errorf("%s %s came back changed", want.Kind, want.Metadata.Name)
	}
	return nil
}

// inEtcd returns every secret and configmap as it lies in etcd, taken apart.
// It fails the test unless each is encrypted, under this key and as the
// plugin promises.
func (c *cluster) inEtcd() map[string]stack.Stored {
	c.t.Helper()
	found := map[string]stack.Stored{}
	for _, prefix := range []string{"/registry/secrets/", "/registry/configmaps/"} {
		resp, err := c.kv.Get(c.t.Context(), prefix, clientv3.WithPrefix())
		require.NoError(c.t, err)
		for _, kv := range resp.Kvs {
			key := string(kv.Key)
			stored, err := stack.ParseStored(kv.Value)
			require.NoError(c.t, err, key)
			require.Equal(c.t, c.provider, stored.Provider, key)
			require.Equal(c.t, c.keyID(), stored.KeyID, key)
			require.EqualValues(c.t, 1, stored.SeedType, key)
			require.Equal(c.t, map[string][]byte{
				"version.azure.akv.io":     []byte("1"),
				"algorithm.azure.akv.io":   []byte("RSA-OAEP-256"),
				"key-version.azure.akv.io": []byte(c.version),
			}, stored.Annotations, key)
			block, err := base64.RawURLEncoding.Strict().DecodeString(string(stored.Seed))
			require.NoError(c.t, err, "%s: the seed is not in the format of Azure/kubernetes-kms", key)
			require.Len(c.t, block, 2048/8, key)

			clear := plaintext(filepath.Base(key))
			require.False(c.t, bytes.Contains(kv.Value, []byte(clear)), "%s holds its plaintext", key)
			require.False(c.t, bytes.Contains(kv.Value, []byte(base64.StdEncoding.EncodeToString([]byte(clear)))), key)
			found[key] = stored
		}
	}
	return found
}
