package vault_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	"azure-kms-plugin/test/vault"
	"github.com/stretchr/testify/require"
)

// admin calls the admin API and decodes the answer into out, unless it is nil.
func admin(t *testing.T, srv *vault.Server, method, path, body string, out any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, srv.AdminURL()+path, strings.NewReader(body))
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	if out == nil {
		out = &struct{}{}
	}
	require.NoError(t, json.NewDecoder(res.Body).Decode(out))
	return res.StatusCode
}

func TestEverythingCanBeDoneOverTheAdminPort(t *testing.T) {
	srv := start(t, vault.Config{})
	do := func(method, path, body string) {
		t.Helper()
		var out map[string]any
		require.Equal(t, 200, admin(t, srv, method, path, body, &out), "%s %s: %v", method, path, out)
	}
	do("POST", "/vaults/kvlab", "")
	do("POST", "/vaults/hsmlab.managedhsm.azure.net", "")
	var state struct {
		Vaults []string
		Proxy  string
		Env    []string
	}
	require.Equal(t, 200, admin(t, srv, "GET", "/", "", &state))
	require.Equal(t, []string{"kvlab.vault.azure.net", "hsmlab.managedhsm.azure.net"}, state.Vaults)
	require.Equal(t, srv.ProxyURL(), state.Proxy)
	require.Equal(t, srv.Env(), state.Env)

	var made struct{ Version, URL string }
	require.Equal(t, 200, admin(t, srv, "POST", "/vaults/kvlab/keys/k1", `{"bits":2048}`, &made))
	require.Equal(t, "https://kvlab.vault.azure.net/keys/k1/"+made.Version, made.URL)
	priv, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	text, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(priv)})))
	require.NoError(t, err)
	known := strings.Repeat("7", 32)
	require.Equal(t, 200, admin(t, srv, "POST", "/vaults/kvlab/keys/k1", `{"version":"`+known+`","pem":`+string(text)+`,"expires":"2030-01-02T03:04:05Z"}`, &made))
	require.Equal(t, known, made.Version)
	do("PATCH", "/vaults/kvlab/keys/k1/"+known, `{"enabled":false,"notBefore":"2029-01-02T03:04:05Z","ops":["decrypt"]}`)
	var versions []struct {
		Version            string
		Enabled            bool
		Expires, NotBefore time.Time
		Ops                []string
	}
	require.Equal(t, 200, admin(t, srv, "GET", "/vaults/kvlab/keys/k1", "", &versions))
	require.Len(t, versions, 2)
	require.False(t, versions[1].Enabled)
	require.Equal(t, 2030, versions[1].Expires.Year())
	require.Equal(t, 2029, versions[1].NotBefore.Year())
	require.Equal(t, []string{"decrypt"}, versions[1].Ops)
	do("POST", "/vaults/kvlab/keys/k1/delete", "")
	do("POST", "/vaults/kvlab/keys/k1/recover", "")
	do("PATCH", "/vaults/kvlab", `{"access":"access-policy","network":"firewall","tenant":"t"}`)

	var added struct{ ID int }
	fault := `{"op":"decrypt","host":"kvlab","status":503,"delay":"20ms","retryAfter":"2s","slowBody":"1ms","times":3,"header":{"x-ms-request-id":"r"}}`
	require.Equal(t, 200, admin(t, srv, "POST", "/faults", fault, &added))
	require.Equal(t, vault.Fault{
		Op: vault.OpDecrypt, Host: "kvlab.vault.azure.net", Status: 503, Delay: 20 * time.Millisecond, RetryAfter: 2 * time.Second,
		SlowBody: time.Millisecond, Times: 3, Header: map[string]string{"x-ms-request-id": "r"},
	}, srv.Faults()[vault.FaultID(added.ID)])
	b, err := json.Marshal(srv.Faults())
	require.NoError(t, err)
	var list map[vault.FaultID]vault.Fault
	require.Equal(t, 200, admin(t, srv, "GET", "/faults", "", &list))
	again, err := json.Marshal(list)
	require.NoError(t, err)
	require.JSONEq(t, string(b), string(again))
	require.True(t, bytes.Contains(b, []byte(`"20ms"`)), "%s", b)
	do("DELETE", "/faults/1", "")
	require.Empty(t, srv.Faults())
	do("DELETE", "/faults", "")

	do("POST", "/principals", `{"clientId":"app-2","secrets":["s"],"assertions":["j.w.t"]}`)
	do("PUT", "/vaults/kvlab/access/app-2", `["get","decrypt"]`)
	do("PUT", "/identities", `[{"clientId":"mi-1","system":true}]`)
	do("POST", "/identities/mi-2/file", `{"host":"login.microsoftonline.us","life":"1h"}`)
	do("POST", "/tokens/revoke", `{"principal":"app-2"}`)
	do("PUT", "/tokens/lifetime", `{"lifetime":"90s"}`)
	var at struct{ Time time.Time }
	require.Equal(t, 200, admin(t, srv, "POST", "/clock", `{"advance":"1h"}`, &at))
	require.Greater(t, time.Until(at.Time), 59*time.Minute)

	hc := &http.Client{Transport: srv.Transport()}
	_, _ = get(t, srv.Vault("kvlab"), hc, "")
	var calls struct {
		Calls  map[string]int
		Detail []vault.Detail
	}
	require.Equal(t, 200, admin(t, srv, "GET", "/calls", "", &calls))
	require.Equal(t, map[string]int{"challenge": 1}, calls.Calls)
	require.Equal(t, []vault.Detail{{Op: "challenge", Host: "kvlab.vault.azure.net", Key: "k1", Begun: 1, Status: map[int]int{401: 1}}}, calls.Detail)
	var requests []vault.Request
	require.Equal(t, 200, admin(t, srv, "GET", "/requests", "", &requests))
	require.Len(t, requests, 1)
	require.Equal(t, "/keys/k1", requests[0].Path)
	do("DELETE", "/calls", "")
	require.Empty(t, srv.Calls())
	do("POST", "/vaults/kvlab/keys/k1/purge", "")
	do("DELETE", "/vaults/kvlab", "")
}

func TestTheAdminPortSaysWhatIsWrong(t *testing.T) {
	srv := start(t, vault.Config{})
	srv.Vault("kvlab")
	for _, tc := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"POST", "/faults", `{"stattus":503}`, 400, `unknown field "stattus"`},
		{"POST", "/faults", `{"delay":5}`, 400, `a duration is a string like "1.5s"`},
		{"POST", "/faults", `{"op":"get"}`, 400, "does nothing"},
		{"POST", "/faults", `{`, 400, "unexpected EOF"},
		{"DELETE", "/faults/7", "", 404, `fault "7": not found`},
		{"GET", "/vaults/kvnone/keys/k1", "", 404, `vault "kvnone": not found`},
		{"POST", "/vaults/kv.example.com", "", 400, "not the host name of a vault"},
		{"POST", "/vaults/kvlab/keys/k1", `{"bits":512}`, 400, "2048, 3072 or 4096"},
		{"POST", "/vaults/kvlab/keys/k1", `{"pem":"x"}`, 400, "not PEM"},
		{"POST", "/vaults/kvlab/keys/k1/delete", "", 400, "no such key"},
		{"PATCH", "/vaults/kvlab", `{"access":"none"}`, 400, "none of rbac"},
		{"PUT", "/vaults/kvlab/access/nobody", `["get"]`, 400, "not a principal"},
		{"PUT", "/tokens/lifetime", `{}`, 400, "positive duration"},
		{"POST", "/principals", `{}`, 400, "client ID"},
		{"POST", "/identities/mi/file", `{"host":"login.example"}`, 400, "not the host of a token endpoint"},
		{"POST", "/identities/mi/file", `{"life":"-1h"}`, 400, "positive duration"},
	} {
		var out struct{ Error string }
		require.Equal(t, tc.status, admin(t, srv, tc.method, tc.path, tc.body, &out), tc.path)
		require.Contains(t, out.Error, tc.text)
	}
}

// az writes wrapKey, and the service's paths wrapkey: the admin API takes either.
func TestAdminTakesOperationsInAnyCase(t *testing.T) {
	srv := start(t, vault.Config{})
	for _, call := range [][3]string{
		{"POST", "/vaults/kvlab", ""},
		{"POST", "/principals", `{"clientId":"app-2","secrets":["s"]}`},
		{"PUT", "/vaults/kvlab/access/app-2", `["wrapKey","UnwrapKey","get"]`},
		{"POST", "/vaults/kvlab/keys/k1", `{"ops":["wrapkey","unwrapKey"]}`},
		{"PATCH", "/vaults/kvlab/keys/k1/current", `{"ops":["Encrypt","UNWRAPKEY"]}`},
		{"POST", "/faults", `{"op":"wrapKey","status":503}`},
	} {
		var out map[string]any
		require.Equal(t, 200, admin(t, srv, call[0], call[1], call[2], &out), "%s: %v", call, out)
	}
	var versions []struct{ Ops []string }
	require.Equal(t, 200, admin(t, srv, "GET", "/vaults/kvlab/keys/k1", "", &versions))
	require.Equal(t, []string{"encrypt", "unwrapKey"}, versions[0].Ops, "as the service spells them")
	for _, f := range srv.Faults() {
		require.Equal(t, vault.OpWrapKey, f.Op)
	}
	require.Equal(t, 400, admin(t, srv, "PATCH", "/vaults/kvlab/keys/k1/current", `{"ops":["wrap"]}`, nil))
}
