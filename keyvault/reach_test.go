package keyvault_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"
)

// The way straight to a vault, step by step, and no token on it.
func TestReach_Direct(t *testing.T) {
	l := newLab(t, vault.Config{})
	dns := newResolver(t)
	_, port, err := net.SplitHostPort(l.srv.Addr())
	require.NoError(t, err)
	reach, err := keyvault.NewReach(keyvault.ReachConfig{Host: "kvlab.vault.azure.net:" + port, RootCAs: l.srv.CertPool()})
	require.NoError(t, err)

	for rcode, want := range map[int32]keyvault.Reason{nxdomain: keyvault.VaultNotFound, servfail: keyvault.Unreachable} {
		dns.rcode.Store(rcode)
		route, err := reach.Resolve(t.Context())
		require.Equal(t, want, failure(t, err).Reason)
		require.Equal(t, keyvault.CauseDNS, failure(t, err).Cause)
		require.Equal(t, "kvlab.vault.azure.net", route.Host)
	}
	dns.rcode.Store(found)
	route, err := reach.Resolve(t.Context())
	require.NoError(t, err)
	require.Equal(t, keyvault.Route{Host: "kvlab.vault.azure.net", Port: port, Addresses: []string{"127.0.0.1"}}, route)
	address, err := reach.Connect(t.Context())
	require.NoError(t, err)
	require.Equal(t, l.srv.Addr(), address)
	x, err := reach.Exchange(t.Context())
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, x.Status)
	require.WithinDuration(t, time.Now(), x.Date, time.Minute)
	require.False(t, x.Answered.Before(x.Sent))
	require.Equal(t, "TLS 1.3", x.TLS.Version)
	require.Contains(t, x.TLS.Certificate, "CN=kvlab.vault.azure.net, issued by CN=Key Vault emulator CA")
	require.True(t, x.TLS.NotAfter.After(time.Now()))
	require.Equal(t, map[string]int{"healthstatus": 1}, l.srv.Calls())

	l.srv.AddFault(vault.Fault{Refuse: true})
	_, err = reach.Connect(t.Context())
	require.Equal(t, keyvault.CauseTCP, failure(t, err).Cause)
	require.Contains(t, failure(t, err).Text, "connection refused")
}

// What does not verify is shown: whoever opens TLS on the way has a name.
func TestReach_Untrusted(t *testing.T) {
	newResolver(t)
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(srv.Close)
	reach, err := keyvault.NewReach(keyvault.ReachConfig{Host: "kvlab.vault.azure.net:" + port(t, srv.Listener.Addr().String())})
	require.NoError(t, err)
	_, err = reach.Exchange(t.Context())
	e := failure(t, err)
	require.Equal(t, keyvault.CauseTLS, e.Cause)
	require.Contains(t, e.Text, "what it shows is O=Acme Co, issued by O=Acme Co, until ")
}

func port(t *testing.T, addr string) string {
	t.Helper()
	_, p, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return p
}

// Proxy mode leads to its service, for the sign-in host too.
func TestReach_ProxyMode(t *testing.T) {
	var seen []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.URL.Path+" "+r.Header.Get("x-azure-proxy-target")+r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(srv.Close)
	number := srv.Listener.Addr().(*net.TCPAddr).Port
	for _, cfg := range []keyvault.ReachConfig{{Host: "kvlab.vault.azure.net"}, {Host: "login.microsoftonline.com", SignIn: true}} {
		cfg.Proxy = &keyvault.ProxyMode{Address: "127.0.0.1", Port: number}
		reach, err := keyvault.NewReach(cfg)
		require.NoError(t, err)
		route, err := reach.Resolve(t.Context())
		require.NoError(t, err)
		require.Equal(t, keyvault.ViaForward, route.Via)
		require.Equal(t, []string{"127.0.0.1"}, route.Addresses)
		_, err = reach.Connect(t.Context())
		require.NoError(t, err)
		x, err := reach.Exchange(t.Context())
		require.NoError(t, err)
		require.Equal(t, http.StatusTeapot, x.Status)
		require.Nil(t, x.TLS)
	}
	require.Equal(t, []string{"/kvlab.vault.azure.net/healthstatus KeyVault", "/ AzureActiveDirectory"}, seen)
	_, err := keyvault.NewReach(keyvault.ReachConfig{Host: "x", Proxy: &keyvault.ProxyMode{}})
	require.Error(t, err)
	_, err = keyvault.NewReach(keyvault.ReachConfig{Host: "x", CAFile: "/nonexistent"})
	require.ErrorContains(t, err, "/nonexistent")
}

// Who is asked for tokens is what the way to sign in says.
func TestCredential_SignInHost(t *testing.T) {
	for config, want := range map[string]string{
		`{"tenantId":"t","aadClientId":"c","aadClientSecret":"s"}`:                           "login.microsoftonline.com",
		`{"cloud":"AzureChinaCloud","tenantId":"t","aadClientId":"c","aadClientSecret":"s"}`: "login.chinacloudapi.cn",
		`{"useManagedIdentityExtension":true}`:                                               "",
		`{"useWorkloadIdentityExtension":true,"cloud":"AzureUSGovernmentCloud"}`:             "login.microsoftonline.us",
	} {
		path := filepath.Join(t.TempDir(), "azure.json")
		require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
		cfg, err := keyvault.ReadConfig(path)
		require.NoError(t, err)
		c, err := keyvault.NewCredential(cfg, keyvault.CredentialOptions{WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "c", TenantID: "t", TokenFile: "/nonexistent"}})
		require.NoError(t, err)
		require.Equal(t, want, c.SignInHost(), strings.ReplaceAll(config, `"`, ""))
	}
}
