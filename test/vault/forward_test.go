package vault_test

import (
	"net/http"
	"strings"
	"testing"

	"azure-kms-plugin/test/vault"
	"github.com/stretchr/testify/require"
)

// The forwarding service is addressed in the place of vault and sign-in host,
// over plain HTTP.
func TestTheForwardingServiceOfProxyMode(t *testing.T) {
	srv := start(t, vault.Config{})
	v, hsm := srv.Vault("kvlab"), srv.HSM("hsmlab")
	send := func(method, path, target string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, srv.ProxyURL()+path, nil)
		require.NoError(t, err)
		if target != "" {
			req.Header.Set("x-azure-proxy-target", target)
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		res.Body.Close()
		return res
	}
	for _, kv := range []*vault.Vault{v, hsm} {
		res := send("GET", "/"+strings.ToUpper(kv.Host())+"/keys/k1?api-version=2025-07-01", "KeyVault")
		require.Equal(t, 401, res.StatusCode)
		require.Contains(t, res.Header.Get("WWW-Authenticate"), kv.Audience())
		require.Equal(t, 1, srv.Count(vault.Match{Op: vault.OpChallenge, Host: kv.Host()}))
		require.Zero(t, srv.ConnectionsTo(kv.Host()))
	}
	require.Equal(t, 200, send("GET", "/"+srv.TenantID+"/v2.0/.well-known/openid-configuration", "AzureActiveDirectory").StatusCode)
	require.Equal(t, 1, srv.Calls()["openid"])

	require.Equal(t, 400, send("GET", "/kvlab.vault.azure.net/keys/k1", "Storage").StatusCode)
	require.Equal(t, 502, send("GET", "/kvnone.vault.azure.net/keys/k1", "KeyVault").StatusCode, "no such name")
	require.Equal(t, 403, send("GET", "/example.com/keys/k1", "KeyVault").StatusCode)
	require.Equal(t, 403, send("GET", "/kvlab.vault.azure.net/keys/k1", "").StatusCode, "without the header it is a proxy")
	require.Len(t, srv.Refused(), 2)
	srv.AddFault(vault.Fault{Host: "kvlab", Refuse: true})
	require.Equal(t, 502, send("GET", "/kvlab.vault.azure.net/keys/k1", "KeyVault").StatusCode)
}
