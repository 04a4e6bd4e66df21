package vault_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"azure-kms-plugin/test/vault"
	"github.com/stretchr/testify/require"
)

func TestTheProxyLeadsNowhereElse(t *testing.T) {
	srv := start(t, vault.Config{})
	v := srv.Vault("kvlab")
	hc := &http.Client{Transport: proxied(t, srv)}
	res, err := hc.Get(v.URL() + "/healthstatus")
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, 200, res.StatusCode)
	require.Contains(t, res.Header.Get("X-Ms-Keyvault-Network-Info"), "addr=127.0.0.1;")

	_, err = hc.Get("https://example.com/")
	require.ErrorContains(t, err, "Forbidden")
	res, err = hc.Get("http://example.com/")
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, 403, res.StatusCode)
	res, err = hc.Get("http://kvlab.vault.azure.net/")
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, 403, res.StatusCode, "the service speaks HTTPS only")
	require.Equal(t, []string{"example.com:443", "example.com"}, srv.Refused())

	_, err = hc.Get("https://kvnone.vault.azure.net/")
	require.ErrorContains(t, err, "Bad Gateway", "a vault that does not exist has no name")
	require.Len(t, srv.Refused(), 2, "but it belongs to the service")
}

func TestWhatAChildProcessNeedsToKnow(t *testing.T) {
	srv := start(t, vault.Config{})
	env := map[string]string{}
	for _, e := range srv.Env() {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		require.Equal(t, srv.ProxyURL(), env[name])
	}
	require.Equal(t, "127.0.0.1,localhost", env["NO_PROXY"])
	ca, err := os.ReadFile(env["SSL_CERT_FILE"])
	require.NoError(t, err)
	require.Contains(t, string(ca), "BEGIN CERTIFICATE")
	require.NotContains(t, string(ca), "PRIVATE")
	require.NoError(t, srv.Close())
	require.NoError(t, srv.Close(), "twice does no harm")
	_, err = os.Stat(env["SSL_CERT_FILE"])
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestOtherCloudsHaveTheirOwnNames(t *testing.T) {
	srv := start(t, vault.Config{})
	hc := &http.Client{Transport: srv.Transport()}
	for host, want := range map[string][2]string{
		"kv.vault.usgovcloudapi.net": {"https://login.microsoftonline.us/", "https://vault.usgovcloudapi.net"},
		"hs.managedhsm.azure.cn":     {"https://login.chinacloudapi.cn/", "https://managedhsm.azure.cn"},
		"hs.managedhsm.azure.net":    {"https://login.microsoftonline.com/", "https://managedhsm.azure.net"},
		"KVMIXED.vault.azure.net":    {"https://login.microsoftonline.com/", "https://vault.azure.net"},
	} {
		v, err := srv.VaultAt(host)
		require.NoError(t, err)
		require.Equal(t, strings.ToLower(host), v.Host())
		res, _ := get(t, v, hc, "")
		require.Equal(t, `Bearer authorization="`+want[0]+srv.TenantID+`", resource="`+want[1]+`"`, res.Header.Get("WWW-Authenticate"))
		require.Equal(t, want[1], v.Audience())
	}
}

func TestTheAddressAloneFindsTheOnlyVault(t *testing.T) {
	r := newRig(t, vault.Config{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.srv.Addr()+"/keys/k1?api-version=2025-07-01", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", r.bearer)
	rt := r.srv.Transport()
	rt.DialContext = nil
	res, err := (&http.Client{Transport: rt}).Do(req)
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, 200, res.StatusCode)
}
