package keyvault_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/stretchr/testify/require"
)

// hsm adds a Managed HSM with the same key.
func (l *lab) hsm(t *testing.T) (*vault.Vault, keyvault.Ref) {
	t.Helper()
	h := l.srv.HSM("hsmlab")
	require.NoError(t, h.ImportKey("k1", v1, testKey(t)))
	return h, keyvault.Ref{Host: h.Host(), Name: "k1", Version: v1}
}

// Case A07: a Managed HSM has an audience of its own, and so has each cloud's.
func TestHSM_RoundTripInEveryCloud(t *testing.T) {
	for domain, cloud := range map[string]string{
		"managedhsm.azure.net":         "AzurePublicCloud",
		"managedhsm.usgovcloudapi.net": "AzureUSGovernmentCloud",
		"managedhsm.azure.cn":          "AzureChinaCloud",
	} {
		t.Run(domain, func(t *testing.T) {
			l := newLab(t, vault.Config{})
			path := filepath.Join(t.TempDir(), "azure.json")
			require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{"cloud": %q, "tenantId": %q, "aadClientId": %q, "aadClientSecret": %q}`,
				cloud, l.srv.TenantID, l.srv.ClientID, l.srv.ClientSecret), 0o600))
			l.connect(t, path, l.srv.Transport())
			h, err := l.srv.VaultAt("hsmlab." + domain)
			require.NoError(t, err)
			require.NoError(t, h.ImportKey("k1", v1, testKey(t)))
			ref := keyvault.Ref{Host: h.Host(), Name: "k1", Version: v1}
			block, err := l.c.Encrypt(within(t, 3*time.Second), ref, []byte("seed"))
			require.NoError(t, err)
			plain, err := l.c.Decrypt(within(t, 3*time.Second), ref, block)
			require.NoError(t, err)
			require.Equal(t, []byte("seed"), plain)
			a, err := l.c.Get(within(t, 3*time.Second), ref)
			require.NoError(t, err)
			require.Equal(t, "RSA-HSM", a.KeyType)
			for _, r := range l.srv.Requests() {
				if r.Op == vault.OpToken {
					require.Equal(t, "https://"+domain, r.Audience)
				}
			}
			require.Equal(t, 1, l.srv.Calls()["token"])
		})
	}
}

// fixedAudience fetches tokens that are for something else.
type fixedAudience struct {
	keyvault.TokenSource
	scope string
}

func (o fixedAudience) Token(ctx context.Context, req keyvault.TokenRequest) (azcore.AccessToken, error) {
	req.Scope = o.scope
	return o.TokenSource.Token(ctx, req)
}

// Case A07: the refusal of a token says which audience is wanted, though a
// Managed HSM's 401 has no body to say it.
func TestHSM_RefusesTheTokenOfAVault(t *testing.T) {
	l := newLab(t, vault.Config{})
	_, ref := l.hsm(t)
	c, _ := newClient(t, l.srv.Transport(), fixedAudience{l.credential(t), "https://vault.azure.net/.default"})
	_, err := c.Encrypt(within(t, 3*time.Second), ref, []byte("seed"))
	e := failure(t, err)
	require.Equal(t, keyvault.CredentialsRefused, e.Reason)
	require.Equal(t, 401, e.Status)
	require.Contains(t, e.Text, "it wants one for https://managedhsm.azure.net,")
	require.Zero(t, l.srv.Count(vault.Match{Op: vault.OpEncrypt, Host: "hsmlab", Status: 200}))
}

// Local roles, in the words of a Managed HSM: the operator is told which.
func TestHSM_MissingRole(t *testing.T) {
	l := newLab(t, vault.Config{})
	h, ref := l.hsm(t)
	bg := keyvault.Background(t.Context())
	wrapping, err := keyvault.NewClient(keyvault.ClientConfig{Credential: l.credential(t), Transport: l.srv.Transport(), Wrap: true})
	require.NoError(t, err)
	require.NoError(t, h.Allow(l.srv.ClientID))
	for name, tt := range map[string]struct {
		do   func() error
		text string
	}{
		"encrypt": {func() error { _, err := l.c.Encrypt(bg, ref, []byte("seed")); return err }, `keys/encrypt, such as "Managed HSM Crypto User"`},
		"decrypt": {func() error { _, err := l.c.Decrypt(bg, ref, []byte("block")); return err }, `keys/decrypt, such as "Managed HSM Crypto User"`},
		"wrap":    {func() error { _, err := wrapping.Encrypt(bg, ref, []byte("seed")); return err }, `keys/wrap, such as "Managed HSM Crypto Service Encryption User"`},
		"unwrap":  {func() error { _, err := wrapping.Decrypt(bg, ref, []byte("block")); return err }, `keys/unwrap, such as "Managed HSM Crypto Service Encryption User"`},
		"get":     {func() error { _, err := l.c.Get(bg, ref); return err }, `keys/read, such as "Managed HSM Crypto Service Encryption User"`},
		"list":    {func() error { _, err := l.c.Versions(bg, ref); return err }, `keys/read, such as "Managed HSM Crypto Service Encryption User"`},
		"deleted": {func() error { _, err := l.c.Deleted(bg, ref); return err }, `"Managed HSM Crypto Officer" sees deleted keys`},
	} {
		t.Run(name, func(t *testing.T) {
			e := failure(t, tt.do())
			require.Equal(t, keyvault.AccessDenied, e.Reason)
			require.Equal(t, "AccessDenied", e.Code, "on top, not inside")
			require.Empty(t, e.InnerCode)
			require.Contains(t, e.Text, tt.text)
			require.Contains(t, e.Text, "request "+e.RequestID)
			require.NotContains(t, e.Text, "Activity")
			require.NotContains(t, e.Text, l.srv.ClientID)
		})
	}
	// The least role is enough for everything but to see deleted keys.
	require.NoError(t, h.Allow(l.srv.ClientID, vault.PermGet, vault.PermList, vault.PermWrapKey, vault.PermUnwrapKey))
	block, err := wrapping.Encrypt(bg, ref, []byte("seed"))
	require.NoError(t, err)
	plain, err := wrapping.Decrypt(bg, ref, block)
	require.NoError(t, err)
	require.Equal(t, "seed", string(plain))
	_, err = wrapping.Get(bg, ref)
	require.NoError(t, err)
}

// Case K05 on a Managed HSM: who may not see deleted keys is told that, and not
// that the key is gone for good.
func TestHSM_DeletedKey(t *testing.T) {
	l := newLab(t, vault.Config{})
	h, ref := l.hsm(t)
	require.NoError(t, h.Allow(l.srv.ClientID, vault.PermGet, vault.PermList, vault.PermEncrypt, vault.PermDecrypt))
	require.NoError(t, h.DeleteKey("k1"))
	_, err := l.c.Decrypt(within(t, 3*time.Second), ref, []byte("block"))
	e := failure(t, err)
	require.Equal(t, keyvault.KeyNotFound, e.Reason)
	require.Contains(t, e.Text, `or it is deleted: only the role "Managed HSM Crypto Officer" sees deleted keys`)
	require.Contains(t, e.Text, "recover it and do not purge it")

	// It shows a deleted key at once to who may see it.
	other := newLab(t, vault.Config{})
	h, ref = other.hsm(t)
	require.NoError(t, h.DeleteKey("k1"))
	_, err = other.c.Decrypt(within(t, 3*time.Second), ref, []byte("block"))
	require.Equal(t, keyvault.KeyDeleted, failure(t, err).Reason)
}

// The other shapes of a Managed HSM's errors: the inner code is on top.
func TestHSM_ErrorShapes(t *testing.T) {
	l := newLab(t, vault.Config{})
	_, ref := l.hsm(t)
	bg := keyvault.Background(t.Context())
	block, err := l.c.Encrypt(bg, ref, []byte("seed"))
	require.NoError(t, err)
	for code, reason := range map[string]keyvault.Reason{
		"KeyDisabled": keyvault.KeyDisabled, "KeyExpired": keyvault.KeyExpired, "KeyNotYetValid": keyvault.KeyNotYetValid,
		"KeyOperationForbidden": keyvault.OperationNotPermitted, "AccessDenied": keyvault.AccessDenied, "ForbiddenByRbac": keyvault.AccessDenied,
		"ForbiddenByFirewall": keyvault.NetworkDenied, "ForbiddenByConnection": keyvault.NetworkDenied,
	} {
		id := l.srv.AddFault(vault.Fault{Host: "hsmlab", Op: "decrypt", InnerCode: code})
		_, err := l.c.Decrypt(bg, ref, block)
		e := failure(t, err)
		require.Equal(t, []any{reason, code, ""}, []any{e.Reason, e.Code, e.InnerCode})
		l.srv.RemoveFault(id)
	}
	_, err = l.c.Decrypt(bg, ref, block)
	require.NoError(t, err)
}

// A list never tells that a key is gone, whichever way a Managed HSM answers.
func TestHSM_VersionsOfAMissingKey(t *testing.T) {
	for _, gone := range []bool{true, false} {
		l := newLab(t, vault.Config{HSMVersions404: gone})
		_, ref := l.hsm(t)
		ref.Name = "missing"
		for range 3 {
			list, err := l.c.Versions(within(t, 3*time.Second), ref)
			require.NoError(t, err)
			require.Empty(t, list)
		}
		require.Equal(t, 3, l.srv.Calls()["list"], "no breaker opens")
		for _, o := range l.seen.outcomes {
			require.Nil(t, o.Err)
		}
	}
	// Another 404 is no list.
	l := newLab(t, vault.Config{})
	_, ref := l.hsm(t)
	l.srv.AddFault(vault.Fault{Op: vault.OpList, Status: 404, Body: "<html>", ContentType: "text/html"})
	_, err := l.c.Versions(within(t, 3*time.Second), ref)
	require.Equal(t, keyvault.Unknown, failure(t, err).Reason)
}

// A version that has not reached this region yet is not there, and the text says
// that this may be why; it is found as soon as it is.
func TestHSM_ReplicationLag(t *testing.T) {
	l := newLab(t, vault.Config{})
	h, ref := l.hsm(t)
	require.NoError(t, h.SetReplication(vault.Replication{Lag: time.Hour}))
	require.NoError(t, h.ImportKey("k1", v2, testKey(t)))
	bg := keyvault.Background(t.Context())
	newer := ref.WithVersion(v2)
	_, err := l.c.Encrypt(bg, newer, []byte("seed"))
	e := failure(t, err)
	require.Equal(t, keyvault.KeyNotFound, e.Reason)
	require.Contains(t, e.Text, "the key exists, but not this version of it")
	require.Contains(t, e.Text, "may not have reached this replica yet")
	a, err := l.c.Get(bg, ref.WithVersion(""))
	require.NoError(t, err)
	require.Equal(t, ref, a.Key)

	require.NoError(t, h.SetReplication(vault.Replication{}))
	_, err = l.c.Encrypt(bg, newer, []byte("seed"))
	require.NoError(t, err)
}

// The 401 of a Managed HSM has no body; a token that it no longer takes is
// replaced all the same.
func TestHSM_RevokedToken(t *testing.T) {
	l := newLab(t, vault.Config{})
	_, ref := l.hsm(t)
	for range 2 {
		_, err := l.c.Encrypt(within(t, 3*time.Second), ref, []byte("seed"))
		require.NoError(t, err)
		l.srv.RevokeTokens()
	}
	require.Equal(t, 2, l.srv.TokensIssued())
}

// Case A08: the challenge of a Managed HSM may not name the vaults' audience, nor
// a vault's that of Managed HSM.
func TestHSM_ForeignChallenge(t *testing.T) {
	for host, resource := range map[string]string{"hsmlab": "https://vault.azure.net", "kvlab": "https://managedhsm.azure.net"} {
		l := newLab(t, vault.Config{})
		_, ref := l.hsm(t)
		if host == "kvlab" {
			ref = l.ref
		}
		l.srv.AddFault(vault.Fault{Op: vault.OpChallenge, Host: host, Status: http.StatusUnauthorized, Header: map[string]string{
			"WWW-Authenticate": `Bearer authorization="https://login.microsoftonline.com/` + l.srv.TenantID + `", resource="` + resource + `"`,
		}})
		_, err := l.c.Encrypt(within(t, 3*time.Second), ref, []byte("seed"))
		e := failure(t, err)
		require.Equal(t, keyvault.CauseProxy, e.Cause)
		require.Contains(t, e.Text, resource)
		require.True(t, strings.HasSuffix(e.Text, "no token was requested or sent"), e.Text)
		require.Zero(t, l.srv.TokensIssued())
	}
}

func (l *lab) credential(t *testing.T) keyvault.TokenSource {
	t.Helper()
	cfg, err := keyvault.ReadConfig(azureJSON(t, l.srv))
	require.NoError(t, err)
	cred, err := keyvault.NewCredential(cfg, keyvault.CredentialOptions{Transport: l.srv.Transport()})
	require.NoError(t, err)
	return cred
}
