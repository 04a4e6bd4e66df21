package keyvault_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// token signs in once.
func token(t *testing.T, c *keyvault.Credential) {
	t.Helper()
	_, err := c.Token(t.Context(), keyvault.TokenRequest{Scope: "https://vault.azure.net/.default"})
	require.NoError(t, err)
}

func newCredential(t *testing.T, path string, o keyvault.CredentialOptions) *keyvault.Credential {
	t.Helper()
	cfg, err := keyvault.ReadConfig(path)
	require.NoError(t, err)
	c, err := keyvault.NewCredential(cfg, o)
	require.NoError(t, err)
	return c
}

// Every file that is taken over, half written and renewed is counted, once each, and a
// certificate tells when it expires.
func TestCredentialState_Files(t *testing.T) {
	for name, pair := range pairsOfFiles(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "file")
			require.NoError(t, os.WriteFile(file, pair.old, 0o600))
			config := file
			if pair.config != nil {
				config = writeFile(t, pair.config(file))
			}
			c := newCredential(t, config, keyvault.CredentialOptions{
				Transport:        &directory{},
				WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: testTenant, TokenFile: file},
			})
			token(t, c)
			token(t, c)
			s := c.State()
			require.Equal(t, c.Method(), s.Method)
			certificate := strings.Contains(name, "PEM") || strings.Contains(name, "PKCS#12") || strings.Contains(name, "password")
			require.Equal(t, certificate, !s.Expires.IsZero())
			if certificate {
				require.WithinDuration(t, time.Now().Add(time.Hour), s.Expires, 2*time.Minute)
			}
			require.Zero(t, s.Reloads, "nothing has changed")
			require.Zero(t, s.FailedReloads)

			require.NoError(t, os.WriteFile(file, nil, 0o600))
			token(t, c)
			token(t, c)
			s = c.State()
			require.Equal(t, []uint64{0, 1}, []uint64{s.Reloads, s.FailedReloads}, "the same fault is one")
			require.Contains(t, s.Fault, "empty file")
			require.Equal(t, certificate, !s.Expires.IsZero(), "what was read before signs in")

			require.NoError(t, os.WriteFile(file, pair.new, 0o600))
			token(t, c)
			token(t, c)
			s = c.State()
			require.Equal(t, []uint64{1, 1}, []uint64{s.Reloads, s.FailedReloads})
			require.Empty(t, s.Fault)
		})
	}
}

// One that the directory refuses is no reload, though it was whole, and neither is
// the way back.
func TestCredentialState_Refused(t *testing.T) {
	path := writeFile(t, string(secretConfig("one")))
	synctest.Test(t, func(t *testing.T) {
		g := newGate(map[string]string{"two": "AADSTS7000215"})
		c := newCredential(t, path, keyvault.CredentialOptions{Transport: &g.directory})
		token(t, c)
		require.NoError(t, os.WriteFile(path, secretConfig("two"), 0o600))
		for range 3 {
			token(t, c)
		}
		s := c.State()
		require.Equal(t, []uint64{0, 1}, []uint64{s.Reloads, s.FailedReloads})
		require.Contains(t, s.Fault, "AADSTS7000215")
		delete(g.refused, "two")
		token(t, c)
		s = c.State()
		require.Equal(t, []uint64{1, 1}, []uint64{s.Reloads, s.FailedReloads})
		require.NoError(t, os.WriteFile(path, secretConfig("one"), 0o600))
		token(t, c)
		require.EqualValues(t, 2, c.State().Reloads, "back to what was before is a change too")
	})
}

// The date is that of the certificate that signs in, and of the identity file if that
// ends before it.
func TestCredentialState_Expires(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	fields := identityFields(t)
	writeIdentity(t, path, fields)
	c, err := newDataPlane(t, path, keyvault.CredentialOptions{Transport: &directory{}})
	require.NoError(t, err)
	in := func(d time.Duration) time.Time { return time.Now().Add(d) }
	require.WithinDuration(t, in(time.Hour), c.State().Expires, time.Minute, "before the first token")

	cert := selfSigned(t, testKey(t), in(-time.Hour), in(48*time.Hour))
	fields["client_secret"] = base64.StdEncoding.EncodeToString(pemOf(t, testKey(t), cert))
	writeIdentity(t, path, fields)
	token(t, c)
	require.WithinDuration(t, in(48*time.Hour), c.State().Expires, time.Minute)

	fields["not_after"] = in(24 * time.Hour).UTC().Format(time.RFC3339)
	writeIdentity(t, path, fields)
	token(t, c)
	require.WithinDuration(t, in(24*time.Hour), c.State().Expires, time.Minute)
	require.EqualValues(t, 1, c.State().Reloads, "it signs in with the same")
}

// A state that is asked for while the file system hangs comes at once.
func TestCredentialState_DoesNotWait(t *testing.T) {
	path := writeFile(t, string(secretConfig("one")))
	c := newCredential(t, path, keyvault.CredentialOptions{Transport: &directory{}})
	release := keyvault.HangFiles(c)
	defer release()
	require.Zero(t, c.State().Reloads)
}
