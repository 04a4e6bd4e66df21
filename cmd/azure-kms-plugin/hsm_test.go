package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/vault"
)

// newHSM adds a Managed HSM with a key to the emulator.
func newHSM(t *testing.T, srv *vault.Server) (*vault.Vault, string) {
	t.Helper()
	h := srv.HSM("hsmlab")
	version, err := h.CreateKey("k1", vault.KeyOptions{})
	require.NoError(t, err)
	return h, version
}

// startHSM serves from a Managed HSM, whose least role the identity has.
func startHSM(t *testing.T, perms []vault.Permission, args ...string) *lab {
	t.Helper()
	srv, _, _ := newVault(t, vault.Config{})
	h, version := newHSM(t, srv)
	if perms != nil {
		require.NoError(t, h.Allow(srv.ClientID, perms...))
	}
	if !byURL(args) {
		args = append([]string{"--managed-hsm", "--keyvault-name=hsmlab"}, args...)
	}
	for i, arg := range args {
		if arg == "--key-url=" {
			args[i] += h.KeyURL("k1", version)
		}
	}
	return startIn(t, &lab{srv: srv, vault: h, version: version}, shortDir(t), nil, args...)
}

// By its flag and by its key's URL a Managed HSM is the same key, under the ID of
// its own URL. Case A07: the token is for Managed HSM, and for nothing else.
func TestServe_ManagedHSM(t *testing.T) {
	for name, args := range map[string][]string{
		"flag":             {},
		"key URL":          {"--key-url="},
		"wrap, least role": {"--key-operations=wrap"},
	} {
		t.Run(name, func(t *testing.T) {
			var perms []vault.Permission
			if len(args) > 0 && args[0] == "--key-operations=wrap" {
				// Managed HSM Crypto Service Encryption User
				perms = []vault.Permission{vault.PermGet, vault.PermList, vault.PermWrapKey, vault.PermUnwrapKey}
			}
			l := startHSM(t, perms, args...).usable(t)
			l.roundTrip(t)
			require.True(t, strings.HasPrefix(l.ref().URL(), "https://hsmlab.managedhsm.azure.net/keys/k1/"))
			code, body := get(t, l.health+"/readyz")
			require.Equal(t, 200, code, body)
			require.Contains(t, l.stderr.String(), l.ref().URL())
			for _, r := range l.srv.Requests() {
				require.Contains(t, []string{"hsmlab.managedhsm.azure.net", "login.microsoftonline.com"}, r.Host)
				if r.Op == vault.OpToken {
					require.Equal(t, "https://managedhsm.azure.net", r.Audience)
				}
			}
			require.Equal(t, 1, l.srv.Calls()["token"])
			require.Empty(t, l.srv.Refused())
		})
	}
}

// A challenge for the audience of vaults gets no token, and its end is noticed.
func TestServe_ManagedHSMWrongAudience(t *testing.T) {
	srv, _, _ := newVault(t, vault.Config{})
	h, version := newHSM(t, srv)
	srv.AddFault(vault.Fault{Op: vault.OpChallenge, Host: "hsmlab", Status: http.StatusUnauthorized, Header: map[string]string{
		"WWW-Authenticate": `Bearer authorization="https://login.microsoftonline.com/` + srv.TenantID + `", resource="https://vault.azure.net"`,
	}})
	l := startIn(t, &lab{srv: srv, vault: h, version: version}, shortDir(t), nil, "--managed-hsm", "--keyvault-name=hsmlab")
	_, err := l.status(t)
	require.ErrorContains(t, err, "https://vault.azure.net, which is not its own domain: no token was requested or sent")
	require.Zero(t, srv.TokensIssued())

	srv.ClearFaults()
	require.Eventually(t, func() bool { _, err := l.status(t); return err == nil }, patience, 100*time.Millisecond)
	l.roundTrip(t)
}

// A local role that is missing has its reason and its name, on the socket, on
// /readyz and in the metrics; it heals without a restart.
func TestServe_ManagedHSMMissingRole(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		text string
	}{
		"encrypt": {nil, `keys/encrypt, such as "Managed HSM Crypto User"`},
		"wrap":    {[]string{"--key-operations=wrap"}, `keys/wrap, such as "Managed HSM Crypto Service Encryption User"`},
	} {
		t.Run(name, func(t *testing.T) {
			l := startHSM(t, []vault.Permission{vault.PermGet}, tt.args...)
			_, err := l.status(t)
			require.ErrorContains(t, err, "AccessDenied: hsmlab.managedhsm.azure.net, key k1, version "+l.version)
			require.ErrorContains(t, err, tt.text)
			require.NotContains(t, err.Error(), l.srv.ClientID)
			code, body := get(t, l.health+"/readyz")
			require.Equal(t, 503, code)
			require.Contains(t, body, "key: AccessDenied: ")
			_, series := get(t, l.metrics)
			require.Contains(t, series, `azure_kms_vault_requests_total{operation="`+name+`",reason="AccessDenied"} `)
			require.NotContains(t, series, `azure_kms_vault_requests_total{operation="`+name+`",reason="AccessDenied"} 0`)

			require.NoError(t, l.vault.Allow(l.srv.ClientID, vault.AllPermissions()...))
			require.Eventually(t, func() bool { _, err := l.status(t); return err == nil }, patience, 100*time.Millisecond)
			l.roundTrip(t)
		})
	}
}

// Case K05 on a Managed HSM: the least role does not see deleted keys, so the text
// says that it may be one.
func TestServe_ManagedHSMDeletedKey(t *testing.T) {
	l := startHSM(t, []vault.Permission{vault.PermGet, vault.PermList, vault.PermWrapKey, vault.PermUnwrapKey}, "--key-operations=wrap").usable(t)
	e := l.encrypt(t, []byte(seed))
	require.NoError(t, l.vault.DeleteKey("k1"))
	_, err := l.client(t).Decrypt(in3s(t), decryptOf(e))
	require.ErrorContains(t, err, "KeyNotFound: ")
	require.ErrorContains(t, err, `"Managed HSM Crypto Officer" sees deleted keys`)
	require.ErrorContains(t, err, "do not purge it")
	require.NoError(t, l.vault.RecoverKey("k1"))
	require.Eventually(t, func() bool {
		_, err := l.client(t).Decrypt(in3s(t), decryptOf(e))
		return err == nil
	}, patience, 100*time.Millisecond)
	_, err = l.client(t).Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: []byte(seed), Uid: "u"})
	require.NoError(t, err)
}
