package keyvault_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// The messages are shaped like the service's, with what must never be shown.
const (
	rbacMessage     = "Caller is not authorized to perform action on resource.\r\nCaller: appid=CANARYAPP;oid=CANARYOID;iss=https://sts.windows.net/x/\r\nResource: '/subscriptions/CANARYSUB/resourceGroups/r'"
	policyMessage   = "The user, group or application 'appid=CANARYAPP;oid=CANARYOID' does not have keys encrypt permission on key vault 'kvlab;location=westeurope'."
	firewallMessage = "Client address is not authorized and caller is not a trusted service.\r\nClient address: 192.0.2.77\r\nCaller: appid=CANARYAPP"
)

// Cases K01, K03 and K05: the table of the service's answers.
func TestClient_AnswersHaveReasons(t *testing.T) {
	for name, tt := range map[string]struct {
		op                   keyvault.Op
		status               int
		code, inner, message string
		reason               keyvault.Reason
		cause                keyvault.Cause
		text                 string
	}{
		"disabled":              {status: 403, code: "Forbidden", inner: "KeyDisabled", message: "Operation decrypt is not allowed on a disabled key.", reason: keyvault.KeyDisabled, text: "enable this version"},
		"disabled, other case":  {status: 403, code: "forbidden", inner: "keydisabled", reason: keyvault.KeyDisabled},
		"disabled, by message":  {status: 403, code: "Forbidden", message: "Operation WrapKey is not allowed on a disabled key", reason: keyvault.KeyDisabled},
		"expired":               {op: keyvault.OpEncrypt, status: 403, code: "Forbidden", inner: "KeyExpired", reason: keyvault.KeyExpired, text: "only decrypts"},
		"expired, by message":   {op: keyvault.OpEncrypt, status: 403, code: "Forbidden", message: "Operation encrypt isn't allowed on an expired key", reason: keyvault.KeyExpired},
		"not yet valid":         {op: keyvault.OpEncrypt, status: 403, code: "Forbidden", inner: "KeyNotYetValid", reason: keyvault.KeyNotYetValid},
		"operation":             {status: 403, code: "Forbidden", inner: "KeyOperationForbidden", reason: keyvault.OperationNotPermitted, text: `"decrypt"`},
		"operation, by message": {status: 403, code: "Forbidden", message: "Operation decrypt is not permitted on this key.", reason: keyvault.OperationNotPermitted},
		"rbac":                  {status: 403, code: "Forbidden", inner: "ForbiddenByRbac", message: rbacMessage, reason: keyvault.AccessDenied, text: `"decrypt"`},
		"rbac, by message":      {status: 403, code: "Forbidden", message: rbacMessage, reason: keyvault.AccessDenied},
		"policy":                {op: keyvault.OpEncrypt, status: 403, code: "Forbidden", inner: "ForbiddenByPolicy", message: policyMessage, reason: keyvault.AccessDenied, text: `"encrypt"`},
		"access denied":         {status: 403, code: "Forbidden", inner: "AccessDenied", message: policyMessage, reason: keyvault.AccessDenied},
		"managed hsm":           {status: 403, code: "AccessDenied", message: "Not authorized to access Microsoft.KeyVault/managedHsm/x/action on / (Activity ID: CANARYOID)", reason: keyvault.AccessDenied},
		"firewall":              {status: 403, code: "Forbidden", inner: "ForbiddenByFirewall", message: firewallMessage, reason: keyvault.NetworkDenied, text: "networking"},
		"firewall, by message":  {status: 403, code: "Forbidden", message: firewallMessage, reason: keyvault.NetworkDenied},
		"private link":          {status: 403, code: "Forbidden", inner: "ForbiddenByConnection", message: "Public network access is disabled and request is not from a trusted service", reason: keyvault.NetworkDenied},
		"other refusal":         {status: 403, code: "Forbidden", inner: "SomethingNew", message: "no", reason: keyvault.Unknown, text: "SomethingNew"},
		"missing key":           {status: 404, code: "KeyNotFound", message: "A key with (name/id) k1 was not found in this key vault.", reason: keyvault.KeyNotFound, text: "do not purge"},
		"deleted":               {status: 409, code: "Conflict", inner: "ObjectIsDeletedButRecoverable", reason: keyvault.KeyDeleted, text: "recover"},
		"being recovered":       {status: 409, code: "Conflict", inner: "ObjectIsBeingRecovered", reason: keyvault.KeyDeleted},
		"throttled":             {status: 429, code: "Throttled", message: "Request was not processed because too many requests were received.", reason: keyvault.Throttled},
		"server":                {status: 503, code: "ServiceUnavailable", reason: keyvault.Unreachable, cause: keyvault.CauseServer},
		"bad ciphertext":        {status: 400, code: "BadParameter", message: "Error occurred while decoding OAEP padding.", reason: keyvault.BadCiphertext},
		"bad key type":          {op: keyvault.OpEncrypt, status: 400, code: "BadParameter", message: "Key type EC does not support this algorithm", reason: keyvault.OperationNotPermitted},
		"bad encrypt":           {op: keyvault.OpEncrypt, status: 400, code: "BadParameter", message: "Property  has invalid value\r\n", reason: keyvault.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWeb()
				w.answer = always(tt.status, tt.code, tt.inner, tt.message)
				c, seen := newClient(t, w, &bank{})
				do := c.Decrypt
				if tt.op == keyvault.OpEncrypt {
					do = c.Encrypt
				} else {
					tt.op = keyvault.OpDecrypt
				}
				_, err := do(within(t, 3*time.Second), key1, []byte("PLAINCANARY"))
				e := failure(t, err)
				require.Equal(t, tt.reason, e.Reason, e.Text)
				require.Equal(t, tt.cause, e.Cause)
				require.Equal(t, tt.status, e.Status)
				require.Equal(t, tt.op, e.Op)
				require.Equal(t, key1, e.Key)
				require.Contains(t, e.Text, tt.text)
				require.Contains(t, e.Text, "req-1")
				require.Contains(t, e.Text, "kvlab.vault.azure.net")
				require.Contains(t, e.Text, v1)
				require.NotContains(t, e.Text, "CANARY")
				require.NotContains(t, e.Text, "192.0.2.77")
				require.Len(t, seen.outcomes, 1)
				require.Same(t, e, seen.outcomes[0].Err)
				require.Equal(t, tt.reason, seen.calls[0].Reason)
			})
		})
	}
}

// Cases K04 and K11: a body that is not Key Vault's comes from something before it.
func TestClient_ForeignAnswers(t *testing.T) {
	page := "<html>" + strings.Repeat("CANARY", 9000) + "</html>"
	for name, tt := range map[string]struct {
		status int
		body   string
		reason keyvault.Reason
		cause  keyvault.Cause
		text   string
	}{
		"404 page":     {404, page, keyvault.Unknown, "", "unexpected response (http 404, text/html)"},
		"200 page":     {200, page, keyvault.Unknown, "", "unexpected response (http 200, text/html"},
		"200 empty":    {200, "", keyvault.Unknown, "", "unexpected response (http 200"},
		"200 nothing":  {200, "{}", keyvault.Unknown, "", "unexpected response (http 200"},
		"307":          {307, "", keyvault.Unknown, "", "unexpected response (http 307"},
		"403 proxy":    {403, page, keyvault.Unreachable, keyvault.CauseProxy, "http 403"},
		"407":          {407, "", keyvault.Unreachable, keyvault.CauseProxy, "http 407"},
		"502 empty":    {502, "", keyvault.Unreachable, keyvault.CauseProxy, "http 502"},
		"503 page":     {503, page, keyvault.Unreachable, keyvault.CauseServer, "http 503"},
		"no kid":       {200, `{"value":"AAAA"}`, keyvault.Unknown, "", "unexpected response"},
		"null kid":     {200, `{"kid":null,"value":"AAAA"}`, keyvault.Unknown, "", "unexpected response"},
		"short kid":    {200, `{"kid":"x","value":"AAAA"}`, keyvault.Unknown, "", "unexpected response"},
		"empty kid":    {200, `{"kid":"","value":"AAAA"}`, keyvault.Unknown, "", "unexpected response"},
		"other kid":    {200, `{"kid":"https://kvlab.vault.azure.net/keys/k1/` + v2 + `","value":"AAAA"}`, keyvault.Unknown, "", "unexpected response"},
		"no value":     {200, `{"kid":"https://kvlab.vault.azure.net/keys/k1/` + v1 + `"}`, keyvault.Unknown, "", "unexpected response"},
		"not base64":   {200, `{"kid":"https://kvlab.vault.azure.net/keys/k1/` + v1 + `","value":"CANARY!"}`, keyvault.Unknown, "", "unexpected response"},
		"cut":          {200, `{"kid":"https://kvlab.vault.azure.net/keys/k1/` + v1 + `","val`, keyvault.Unknown, "", "unexpected response"},
		"100 MB":       {200, strings.Repeat(" ", 2<<20), keyvault.Unreachable, keyvault.CauseServer, "more than 1048576 bytes"},
		"401 no heads": {401, "", keyvault.Unreachable, keyvault.CauseProxy, "answers 401 without a WWW-Authenticate header"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWeb()
				w.answer = func(r request) (*http.Response, error) {
					resp := reply(r.http, tt.status, tt.body)
					resp.Header = http.Header{"Content-Type": {"text/html; charset=utf-8"}, "Location": {"https://elsewhere.example/"}}
					return resp, nil
				}
				c, _ := newClient(t, w, &bank{})
				_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
				e := failure(t, err)
				require.Equal(t, tt.reason, e.Reason, e.Text)
				require.Equal(t, tt.cause, e.Cause)
				require.Contains(t, e.Text, tt.text)
				require.NotContains(t, e.Text, "CANARY")
				require.Less(t, len(e.Text), 400)
				for _, r := range w.requests {
					require.Equal(t, "kvlab.vault.azure.net", r.http.URL.Host, "a redirect was followed")
				}
			})
		})
	}
}

// Case K11: padding, which the protocol leaves out, does no harm.
func TestClient_PaddedBase64(t *testing.T) {
	w := newWeb()
	w.answer = func(r request) (*http.Response, error) {
		return reply(r.http, 200, `{"kid":"https://KVLAB.vault.azure.net/keys/K1/`+strings.ToUpper(v1)+`", "value" : "YQ=="}`), nil
	}
	c, _ := newClient(t, w, &bank{})
	got, err := c.Decrypt(t.Context(), key1, []byte("block"))
	require.NoError(t, err)
	require.Equal(t, []byte("a"), got)
}

// Case K09: the words for what came instead of an answer, and what is tried again.
func TestClient_NetworkFailures(t *testing.T) {
	dialed := func(err error) error {
		return &url.Error{Op: "Post", URL: "https://kvlab/CANARY", Err: &net.OpError{Op: "dial", Net: "tcp", Err: err}}
	}
	for name, tt := range map[string]struct {
		err    error
		reason keyvault.Reason
		cause  keyvault.Cause
		text   string
		calls  int
	}{
		"no such name":  {&net.DNSError{Err: "no such host", Name: "kvlab.vault.azure.net", IsNotFound: true}, keyvault.VaultNotFound, keyvault.CauseDNS, "does not exist in DNS", 1},
		"servfail":      {&net.DNSError{Err: "server misbehaving", Name: "kvlab.vault.azure.net", IsTemporary: true}, keyvault.Unreachable, keyvault.CauseDNS, "resolver fails", 2},
		"resolver dead": {&net.DNSError{Err: "i/o timeout", Name: "kvlab.vault.azure.net", IsTimeout: true}, keyvault.Unreachable, keyvault.CauseDNS, "does not answer", 2},
		"refused":       {dialed(syscall.ECONNREFUSED), keyvault.Unreachable, keyvault.CauseTCP, "connection refused", 2},
		"no route":      {dialed(syscall.EHOSTUNREACH), keyvault.Unreachable, keyvault.CauseTCP, "no route", 2},
		"reset":         {&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, keyvault.Unreachable, keyvault.CauseTCP, "reset", 2},
		"closed":        {io.EOF, keyvault.Unreachable, keyvault.CauseTCP, "closed", 2},
		"tls":           {errors.New("tls: protocol version not supported"), keyvault.Unreachable, keyvault.CauseTLS, "protocol version", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWeb()
				w.answer = func(request) (*http.Response, error) { return nil, tt.err }
				c, _ := newClient(t, w, &bank{})
				_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
				e := failure(t, err)
				require.Equal(t, tt.reason, e.Reason, e.Text)
				require.Equal(t, tt.cause, e.Cause)
				require.Contains(t, e.Text, tt.text)
				require.Contains(t, e.Text, "kvlab.vault.azure.net")
				require.NotContains(t, e.Text, "CANARY")
				require.Equal(t, tt.calls, w.calls(""))
			})
		})
	}
}
