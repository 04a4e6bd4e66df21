package embedded_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"azure-kms-plugin/test/stack"
	"azure-kms-plugin/test/stack/embedded"
	"azure-kms-plugin/test/vault"
)

// docs/compatibility.md, "After a rotation with two plugins": a cluster that has two
// providers goes over to one, and may let both name one socket meanwhile.
func TestTwoProvidersBecomeOne(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	bin, err := stack.PluginBinary("", root)
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "kms") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	srv, err := vault.Start(vault.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { srv.Close() })
	azureJSON, err := srv.AzureJSON(dir)
	require.NoError(t, err)

	start := func(name string) (p *stack.Plugin, version string) {
		version, err := srv.Vault("kvlab").CreateKey("k1", vault.KeyOptions{Bits: 2048})
		require.NoError(t, err)
		p, err = stack.NewPlugin(stack.PluginConfig{
			Bin: bin, Dir: dir, Vault: "kvlab", Key: "k1", Version: version,
			AzureJSON: azureJSON, Socket: filepath.Join(dir, name+".sock"), Env: srv.Env(),
		})
		require.NoError(t, err)
		require.NoError(t, p.Start(t.Context()))
		t.Cleanup(func() { p.Stop() })
		return p, version
	}
	old, _ := start("old")
	next, version := start("new")

	etcd, err := embedded.StartEtcd(t.Context(), filepath.Join(dir, "etcd"))
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	// A kube-apiserver that is restarted with these providers.
	with := func(do func(*embedded.Store), providers ...stack.Provider) {
		file := filepath.Join(dir, "encryption.yaml")
		require.NoError(t, stack.WriteEncryptionConfig(file, []string{"secrets"}, providers...))
		store, err := embedded.Open(t.Context(), etcd.URL, file)
		require.NoError(t, err)
		defer store.Close()
		do(store)
	}
	provider := func(name string, p *stack.Plugin) stack.Provider {
		return stack.Provider{Name: name, Endpoint: p.Endpoint, Timeout: 3 * time.Second}
	}
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{"of": []byte(name)}}
	}
	read := func(s *embedded.Store, names ...string) {
		for _, name := range names {
			got, err := s.Get(t.Context(), "default", name)
			require.NoError(t, err)
			require.Equal(t, name, string(got.Data["of"]))
		}
	}

	with(func(s *embedded.Store) { require.NoError(t, s.Create(t.Context(), secret("before"))) }, provider("first", old))
	with(func(s *embedded.Store) {
		read(s, "before")
		require.NoError(t, s.Create(t.Context(), secret("after")))
	}, provider("second", next), provider("first", old))

	require.NoError(t, old.Stop())
	with(func(s *embedded.Store) {
		read(s, "before", "after")
		require.NoError(t, s.Rewrite(t.Context(), "default", "before"))
		_, value, _, err := s.Raw(t.Context(), "default", "before")
		require.NoError(t, err)
		stored, err := stack.ParseStored(value)
		require.NoError(t, err)
		require.Equal(t, "second", stored.Provider)
		require.Equal(t, stack.KeyID("kvlab", "k1", version), stored.KeyID)
	}, provider("second", next), provider("first", next))
	with(func(s *embedded.Store) { read(s, "before", "after") }, provider("second", next))
}
