package keyvault_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/keyvault"
)

const refVersion = "0123456789abcdef0123456789abcdef"

func TestParseURL(t *testing.T) {
	full := keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: refVersion}
	for text, want := range map[string]keyvault.Ref{
		"https://kvlab.vault.azure.net/keys/k1/" + refVersion:     full,
		"https://kvlab.vault.azure.net:443/keys/k1/" + refVersion: full,
		"https://kvlab.vault.azure.net/keys/k1":                   full.WithVersion(""),
		"https://kvlab.vault.azure.net/keys/k1/":                  full.WithVersion(""),
		"https://KvLab.vault.azure.net/keys/k1":                   {Host: "KvLab.vault.azure.net", Name: "k1"},
	} {
		got, err := keyvault.ParseURL(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

// C10: nothing that could change the request's path or host gets through.
func TestParseURL_Refuses(t *testing.T) {
	for _, text := range []string{
		"", "kvlab", "https://", "http://kvlab.vault.azure.net/keys/k1", "https://kvlab.vault.azure.net",
		"https://kvlab.vault.azure.net/secrets/k1", "https://kvlab.vault.azure.net/keys", "https://kvlab.vault.azure.net/keys//" + refVersion,
		"https://kvlab.vault.azure.net/keys/../secrets/s1", "https://kvlab.vault.azure.net/keys/k1%2f..", "https://kvlab.vault.azure.net/keys/k_1",
		"https://kvlab.vault.azure.net/keys/k1?x=1", "https://kvlab.vault.azure.net/keys/k1#x", "https://u:p@kvlab.vault.azure.net/keys/k1",
		"https://kvlab.vault.azure.net:8443/keys/k1", "https://kvlab/keys/k1", "https://-a.vault.azure.net/keys/k1", "https://[::1]/keys/k1",
		"https://kvlab.vault.azure.net/keys/" + strings.Repeat("a", 128), "https://kvlab.vault.azure.net/keys/k1/" + refVersion + "/x",
		"https://kvlab.vault.azure.net/keys/k1/" + refVersion[1:], "https://kvlab.vault.azure.net/keys/k1/" + refVersion[1:] + "g",
	} {
		_, err := keyvault.ParseURL(text)
		require.Error(t, err, text)
	}
}

// The ID is that of the existing plugins, spelling of the host included; data
// under the lower-case spelling is found as well.
func TestRef_KeyIDs(t *testing.T) {
	lower := keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: refVersion}
	// Recorded from both plugins, see plugin/testdata.
	require.Equal(t, "8ee113d906dc528ab681a1b61427a6e84854a57b4d9cda6b67dc6e299a8e0366", lower.KeyID())
	require.Equal(t, []string{lower.KeyID()}, lower.KeyIDs())

	mixed := lower
	mixed.Host = "KvLab.vault.azure.net"
	require.NotEqual(t, lower.KeyID(), mixed.KeyID())
	require.Equal(t, []string{mixed.KeyID(), lower.KeyID()}, mixed.KeyIDs())
	require.True(t, mixed.SameVersion(lower))
	require.False(t, mixed.SameVersion(lower.WithVersion("")))
	require.True(t, mixed.SameKey(lower.WithVersion("")))
}

func TestKeyIDHash(t *testing.T) {
	require.Equal(t, "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", keyvault.KeyIDHash("test"))
}
