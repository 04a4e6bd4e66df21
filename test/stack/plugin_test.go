package stack_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"azure-kms-plugin/test/stack"
)

func TestPlugin_ArgsAreThoseOfHyperShift(t *testing.T) {
	p, err := stack.NewPlugin(stack.PluginConfig{
		Vault: "kv", Key: "k", Version: "0123", AzureJSON: "/etc/kubernetes/azure.json", Socket: "/opt/azurekmsactive.socket",
	})
	require.NoError(t, err)
	ports := regexp.MustCompile(`=\d{2,5}$`)
	var got []string
	for _, a := range p.Args() {
		got = append(got, ports.ReplaceAllString(a, "=PORT"))
	}
	require.Equal(t, []string{
		"--keyvault-name=kv", "--key-name=k", "--key-version=PORT",
		"--listen-addr=unix:///opt/azurekmsactive.socket",
		"--healthz-port=PORT", "--metrics-addr=PORT", "--healthz-path=/healthz",
		"--config-file-path=/etc/kubernetes/azure.json", "-v=1",
	}, got)
}

func TestPlugin_ArgsWithoutAVersion(t *testing.T) {
	p, err := stack.NewPlugin(stack.PluginConfig{Vault: "kv", Key: "k", Args: []string{"--poll-interval=5s"}})
	require.NoError(t, err)
	require.Equal(t, []string{"--keyvault-name=kv", "--key-name=k"}, p.Args()[:2])
	require.NotContains(t, strings.Join(p.Args(), " "), "--key-version")
	require.Equal(t, "--poll-interval=5s", p.Args()[len(p.Args())-1])
}

func TestPluginBinary(t *testing.T) {
	t.Setenv(stack.PluginVar, "")
	root := t.TempDir()
	_, err := stack.PluginBinary("", root)
	require.ErrorContains(t, err, filepath.Join(root, "bin", "azure-kms-plugin"))
	require.ErrorContains(t, err, "make build")

	made := filepath.Join(root, "bin", "azure-kms-plugin")
	write(t, made, "")
	_, err = stack.PluginBinary("", root)
	require.ErrorContains(t, err, "is not a program")

	require.NoError(t, os.Chmod(made, 0o755))
	got, err := stack.PluginBinary("", root)
	require.NoError(t, err)
	require.Equal(t, made, got)

	t.Setenv(stack.PluginVar, "/nowhere/plugin")
	_, err = stack.PluginBinary("", root)
	require.ErrorContains(t, err, "/nowhere/plugin")
}

func TestNewPlugin_SocketPathIsTooLong(t *testing.T) {
	_, err := stack.NewPlugin(stack.PluginConfig{Socket: "/" + strings.Repeat("x", 107)})
	require.ErrorContains(t, err, "has 108 bytes")
}

func TestWriteEncryptionConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	require.NoError(t, stack.WriteEncryptionConfig(path, []string{"secrets"},
		stack.Provider{Name: "active", Endpoint: "unix:///opt/a.socket", Timeout: 35 * time.Second},
		stack.Provider{Name: "backup", Endpoint: "unix:///opt/b.socket"}))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, json.Valid(text))
	require.JSONEq(t, `{
	  "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
	  "resources": [{"resources": ["secrets"], "providers": [
	    {"kms": {"apiVersion": "v2", "name": "active", "endpoint": "unix:///opt/a.socket", "timeout": "35s"}},
	    {"kms": {"apiVersion": "v2", "name": "backup", "endpoint": "unix:///opt/b.socket"}},
	    {"identity": {}}]}]}`, string(text))
}

func TestHyperShiftProviderName(t *testing.T) {
	a := stack.HyperShiftProviderName("kv", "k", "1")
	require.Regexp(t, `^azure-[0-9a-f]{8}$`, a)
	require.NotEqual(t, a, stack.HyperShiftProviderName("kv", "k", "2"), "every version has its own")
}

func TestParseStored(t *testing.T) {
	field := func(b []byte, n protowire.Number, content string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), content)
	}
	note := field(field(nil, 1, "version.azure.akv.io"), 2, "1")
	header := field(field(field(nil, 1, "data"), 2, "id"), 3, "seed")
	header = field(header, 4, string(note))
	header = protowire.AppendVarint(protowire.AppendTag(header, 5, protowire.VarintType), 1)

	value := append([]byte("k8s:enc:kms:v2:azure-1:"), header...)
	got, err := stack.ParseStored(value)
	require.NoError(t, err)
	require.Equal(t, stack.Stored{
		Provider: "azure-1", Data: []byte("data"), KeyID: "id", Seed: []byte("seed"), SeedType: 1,
		Annotations: map[string][]byte{"version.azure.akv.io": []byte("1")},
	}, got)

	for name, bad := range map[string][]byte{
		"plain":         []byte("k8s\x00"),
		"another form":  []byte("k8s:enc:aescbc:v1:key:"),
		"no provider":   []byte("k8s:enc:kms:v2:azure"),
		"cut short":     value[:len(value)-1],
		"unknown field": field(value, 6, "x"),
	} {
		_, err := stack.ParseStored(bad)
		require.Error(t, err, name)
	}
}
