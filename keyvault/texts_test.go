package keyvault_test

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// What services say of people, applications, tenants and subscriptions.
const (
	someGUID     = "9e9e9e9e-1111-2222-3333-444444444444"
	somebody     = "someone@tenant.example"
	subscription = "/subscriptions/" + someGUID + "/resourceGroups/secretgroup"
	gossip       = "Caller: appid=" + someGUID + ";oid=" + someGUID + ";iss=https://sts.windows.net/" + someGUID + "/\r\nUser " + somebody +
		" Resource: '" + subscription + "' Client address: 192.0.2.77 \x1b[31m\u202e"
)

var (
	guid      = regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	requestOf = regexp.MustCompile(`request [0-9a-f-]{36}`)
)

// checkText holds every error to what may be shown in a log, a condition and the
// /readyz of kube-apiserver.
func checkText(t *testing.T, err error, whole bool) keyvault.Reason {
	t.Helper()
	require.Error(t, err)
	e := failure(t, err) // begins with its reason, and fits
	s := e.Error()
	require.True(t, utf8.ValidString(s), "%q", s)
	require.Equal(t, -1, strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", s)
	require.Contains(t, keyvault.Reasons(), e.Reason)
	require.NotEmpty(t, strings.TrimPrefix(s, string(e.Reason)+": "))
	require.Empty(t, guid.FindString(requestOf.ReplaceAllString(s, "")), s)
	for _, never := range []string{"@", "appid", "oid=", "subscriptions", "secretgroup", "192.0.2.77", "CANARY"} {
		require.NotContains(t, s, never)
	}
	if whole {
		require.False(t, strings.HasSuffix(s, "..."), "cut: %s", s)
	}
	return e.Reason
}

// Whatever a vault, a device before it, the network or a sign-in host answers, with
// names of any length: the text says the reason first, fits, and names nobody. With
// the longest names that Azure has, nothing of the advice is cut off.
func TestTexts(t *testing.T) {
	seen := map[keyvault.Reason]bool{}
	refs := map[string]keyvault.Ref{
		"ordinary":    key1,
		"longest":     {Host: strings.Repeat("v", 24) + ".vault.usgovcloudapi.net", Name: strings.Repeat("k", 127), Version: v1},
		"longest HSM": {Host: strings.Repeat("h", 24) + ".managedhsm.usgovcloudapi.net", Name: strings.Repeat("k", 127), Version: v1},
		"absurd":      {Host: strings.Repeat(strings.Repeat("x", 60)+".", 3) + strings.Repeat("y", 40) + ".vault.azure.net", Name: strings.Repeat("k", 127), Version: v1},
	}
	for name, ref := range refs {
		whole := name != "absurd"
		t.Run(name, func(t *testing.T) {
			require.NoError(t, ref.Validate())
			_, domain, _ := strings.Cut(ref.Host, ".")
			if name == "absurd" {
				domain = "vault.azure.net"
			}
			purged := false
			for n, answer := range answers() {
				synctest.Test(t, func(t *testing.T) {
					w := newWeb()
					w.challenge = `Bearer authorization="https://login.microsoftonline.com/` + someGUID + `", resource="https://` + domain + `"`
					w.answer = answer
					for _, wrap := range []bool{false, true} {
						c, err := keyvault.NewClient(keyvault.ClientConfig{Credential: &bank{}, Transport: w, Wrap: wrap})
						require.NoError(t, err)
						for op, call := range operations(ref, wrap) {
							for range 2 { // the second time with what went before
								if err := call(within(t, 3*time.Second), c); err != nil {
									seen[checkText(t, err, whole)] = true
									purged = purged || strings.Contains(err.Error(), "the key was purged")
								} else {
									require.True(t, op == "list" || op == "deleted" && (n == "deleted" || n == "purged later"), "%s: %s has not failed", n, op)
								}
								time.Sleep(time.Minute)
							}
						}
					}
				})
			}
			require.True(t, purged, "the longest text was not tried")
		})
	}
	for _, resource := range []string{somebody, "https://" + somebody, "https://elsewhere.example/" + someGUID, "https://" + strings.Repeat("x", 2000) + "/", "http://" + someGUID, ""} {
		synctest.Test(t, func(t *testing.T) {
			w := newWeb()
			w.challenge = `Bearer authorization="https://login.microsoftonline.com/` + someGUID + `", resource="` + resource + `"`
			c, _ := newClient(t, w, &bank{})
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			checkText(t, err, true)
		})
	}
	t.Run("signing in", func(t *testing.T) {
		for reason := range signInTexts(t) {
			seen[reason] = true
		}
	})
	t.Run("the caller's own", func(t *testing.T) {
		for reason := range callerTexts(t) {
			seen[reason] = true
		}
	})
	for _, reason := range keyvault.Reasons() {
		require.True(t, seen[reason] || reason == keyvault.Success, "%s was not tried", reason)
	}
}

// operations are the calls of a client, each by its name.
func operations(ref keyvault.Ref, wrap bool) map[string]func(context.Context, *keyvault.Client) error {
	all := map[string]func(context.Context, *keyvault.Client) error{
		"encrypt": func(ctx context.Context, c *keyvault.Client) error {
			_, err := c.Encrypt(ctx, ref, []byte("seed"))
			return err
		},
		"decrypt": func(ctx context.Context, c *keyvault.Client) error {
			_, err := c.Decrypt(ctx, ref, []byte("block"))
			return err
		},
	}
	if wrap {
		return all
	}
	all["get"] = func(ctx context.Context, c *keyvault.Client) error {
		_, err := c.Get(ctx, ref)
		return err
	}
	all["list"] = func(ctx context.Context, c *keyvault.Client) error {
		_, err := c.Versions(ctx, ref)
		return err
	}
	all["deleted"] = func(ctx context.Context, c *keyvault.Client) error {
		_, err := c.Deleted(ctx, ref)
		return err
	}
	return all
}

// asJSON is for texts that Go's own quotes would not leave JSON.
func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// answers are those of a vault and of what lies before it, full of gossip.
func answers() map[string]func(request) (*http.Response, error) {
	all := map[string]func(request) (*http.Response, error){}
	long := strings.Repeat("LongWordOfACode", 20)
	add := func(status int, code, inner string) {
		all[fmt.Sprint(status, code, inner)] = func(r request) (*http.Response, error) {
			body := map[string]any{"code": code, "message": gossip}
			if inner != "" {
				body["innererror"] = map[string]any{"code": inner}
			}
			resp := reply(r.http, status, asJSON(map[string]any{"error": body}))
			resp.Header.Set("X-Ms-Request-Id", "11112222-3333-4444-5555-666677778888")
			if status == 429 {
				resp.Header.Set("Retry-After", "3600")
			}
			return resp, nil
		}
	}
	for _, status := range []int{302, 400, 401, 403, 404, 407, 408, 409, 429, 500, 503} {
		for _, code := range []string{"", "AnyCode", someGUID, somebody, long} {
			add(status, code, long)
		}
		add(status, "AnyCode", subscription)
		all[fmt.Sprint(status, " page")] = func(r request) (*http.Response, error) {
			resp := reply(r.http, status, "<html>"+gossip)
			resp.Header = http.Header{"Content-Type": {"text/" + somebody}, "X-Ms-Request-Id": {somebody + "\x1b" + strings.Repeat("r", 500)}}
			return resp, nil
		}
	}
	for _, inner := range []string{
		"", "KeyDisabled", "KeyExpired", "KeyNotYetValid", "KeyOperationForbidden", "ForbiddenByRbac", "ForbiddenByPolicy", "ForbiddenByFirewall",
	} {
		add(403, "Forbidden", inner)
	}
	add(403, "AccessDenied", "") // of a Managed HSM
	add(400, "BadParameter", "")
	add(404, "KeyNotFound", "")
	add(409, "Conflict", "ObjectIsDeletedButRecoverable")
	add(429, "Throttled", "")
	all["deleted"] = func(r request) (*http.Response, error) {
		if r.op == "getdeleted" {
			return reply(r.http, 200, `{"key":{"kid":"https://x/keys/k1/x"},"attributes":{},"deletedDate":1668432000,"scheduledPurgeDate":1676208000}`), nil
		}
		return vaultError(r, 404, "KeyNotFound", "", ""), nil
	}
	all["purged later"] = func(r request) (*http.Response, error) {
		if r.op == "getdeleted" && time.Now().Minute()%4 < 2 { // fake time begins at midnight
			return all["deleted"](r)
		}
		return vaultError(r, 404, "KeyNotFound", "", ""), nil
	}
	all["another version"] = func(r request) (*http.Response, error) {
		if r.op == "get" && r.version == "" {
			return good(r), nil
		}
		return vaultError(r, 404, "KeyNotFound", "", ""), nil
	}
	all["no look allowed"] = func(r request) (*http.Response, error) {
		if r.op == "getdeleted" || r.op == "get" && r.version == "" {
			return vaultError(r, 403, "Forbidden", "ForbiddenByRbac", ""), nil
		}
		return vaultError(r, 404, "KeyNotFound", "", ""), nil
	}
	all["a success that is none"] = func(r request) (*http.Response, error) { return reply(r.http, 200, gossip), nil }
	for n, err := range map[string]error{
		"no such vault":  &net.DNSError{IsNotFound: true},
		"no such proxy":  &net.DNSError{Name: strings.Repeat("p", 60) + ".example", IsNotFound: true},
		"resolver":       &net.DNSError{Name: strings.Repeat("p", 60) + ".example", IsTimeout: true},
		"refused":        errConnectionRefused,
		"other operands": &net.OpError{Op: "odd" + strings.Repeat("o", 500), Err: errors.New(strings.Repeat("e", 500))},
		"authority":      x509.UnknownAuthorityError{},
		"a panic":        nil,
	} {
		all[n] = func(r request) (*http.Response, error) {
			if err == nil {
				panic(gossip)
			}
			if d, ok := err.(*net.DNSError); ok && d.Name == "" {
				return nil, &net.DNSError{Name: r.http.URL.Hostname(), IsNotFound: true}
			}
			return nil, &url.Error{Op: "Post", URL: "https://" + somebody, Err: err}
		}
	}
	all["silence"] = func(r request) (*http.Response, error) { return nil, wait(r, time.Hour) }
	return all
}

// signInTexts tries each way to sign in with each answer.
func signInTexts(t *testing.T) map[keyvault.Reason]bool {
	seen := map[keyvault.Reason]bool{}
	token := writeFile(t, federated("J1"))
	// Fake time begins in the year 2000.
	pair := pemOf(t, testKey(t), selfSigned(t, testKey(t), time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2049, 1, 1, 0, 0, 0, 0, time.UTC)))
	cert := writeFile(t, string(pair))
	identity := t.TempDir() + "/identity"
	fields := identityFields(t)
	fields["client_secret"], fields["not_before"] = base64.StdEncoding.EncodeToString(pair), "1999-01-01T00:00:00Z"
	fields["client_id"], fields["authentication_endpoint"] = someGUID, "https://"+strings.Repeat(strings.Repeat("l", 60)+".", 3)+"example"
	writeIdentity(t, identity, fields)
	ways := []string{
		`{"tenantId":"` + testTenant + `","aadClientId":"` + someGUID + `","aadClientSecret":"s"}`,
		`{"tenantId":"` + testTenant + `","aadClientId":"` + someGUID + `","aadClientCertPath":"` + cert + `"}`,
		`{"useWorkloadIdentityExtension":true}`,
		`{"useManagedIdentityExtension":true}`,
		`{"useManagedIdentityExtension":true,"userAssignedIdentityID":"` + subscription + `/providers/Microsoft.ManagedIdentity/userAssignedIdentities/id"}`,
		`{"aadMSIDataPlaneIdentityPath":"` + identity + `"}`,
	}
	var answers []func(req *http.Request) (*http.Response, error)
	for _, status := range []int{200, 400, 401, 403, 404, 429, 500} {
		for _, says := range []string{
			"AADSTS7000215: ", "AADSTS50033: ", "AADSTS99999: ", "Identity not found ", "Multiple user assigned identities exist ", "",
		} {
			for _, word := range []string{"invalid_client", "temporarily_unavailable", somebody} {
				answers = append(answers, func(req *http.Request) (*http.Response, error) {
					return reply(req, status, asJSON(map[string]any{"error": word, "error_description": says + gossip, "trace_id": someGUID})), nil
				})
			}
		}
		answers = append(answers, func(req *http.Request) (*http.Response, error) { return reply(req, status, gossip), nil })
	}
	answers = append(answers, func(*http.Request) (*http.Response, error) {
		return nil, &url.Error{Op: "Post", URL: "https://" + somebody, Err: errConnectionRefused}
	})
	for _, way := range ways {
		path := writeFile(t, way)
		synctest.Test(t, func(t *testing.T) {
			cfg, err := keyvault.ReadConfig(path)
			require.NoError(t, err)
			for _, answer := range answers {
				d := &directory{answer: func(_ int, _ url.Values, req *http.Request) (*http.Response, error) { return answer(req) }}
				c, err := keyvault.NewCredential(cfg, keyvault.CredentialOptions{
					Transport:        d,
					WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: someGUID, TenantID: testTenant, TokenFile: token},
				})
				require.NoError(t, err)
				for _, tenant := range []string{testTenant, someGUID} {
					_, err = c.Token(within(t, time.Minute), keyvault.TokenRequest{Scope: "https://vault.azure.net/.default", TenantID: tenant})
					seen[checkText(t, err, true)] = true
				}
			}
		})
	}
	return seen
}

// callerTexts are the failures of requests that reach no vault.
func callerTexts(t *testing.T) map[keyvault.Reason]bool {
	seen := map[keyvault.Reason]bool{}
	synctest.Test(t, func(t *testing.T) {
		c, _ := newClient(t, newWeb(), &bank{})
		_, err := c.Decrypt(within(t, time.Second), key1, make([]byte, 5000))
		seen[checkText(t, err, true)] = true
		_, err = c.Decrypt(within(t, time.Second), keyvault.Ref{Host: somebody, Name: gossip}, []byte("block"))
		seen[checkRefusedRef(t, err)] = true
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.Decrypt(ctx, key1, []byte("block"))
		seen[checkText(t, err, true)] = true
		kr, err := keyvault.NewPinned(keyvault.KeyringConfig{Vault: c, Directory: c, Write: key1})
		require.NoError(t, err)
		for _, id := range []string{strings.Repeat("ab", 32), gossip} {
			_, _, err = kr.Decrypt(within(t, time.Second), id, "", []byte("block"))
			seen[checkText(t, err, true)] = true
		}
	})
	return seen
}

// checkRefusedRef is about a name that is refused: quoting it shows it to whoever gave it.
func checkRefusedRef(t *testing.T, err error) keyvault.Reason {
	t.Helper()
	e := failure(t, err)
	require.Equal(t, -1, strings.IndexFunc(e.Error(), func(r rune) bool { return !unicode.IsPrint(r) }), "%q", e.Error())
	return e.Reason
}

// A text is cut between two characters, and never more than one line.
func TestError_AnyText(t *testing.T) {
	for _, reason := range keyvault.Reasons() {
		for _, text := range []string{
			strings.Repeat("й", 2000), strings.Repeat("x", 1000) + strings.Repeat("界", 30), strings.Repeat("\xff", 3000),
			"/tmp/a\nb\x1b[31m/c: no such file", strings.Repeat("\n", 2000), "",
		} {
			s := (&keyvault.Error{Reason: reason, Text: text}).Error()
			require.LessOrEqual(t, len(s), 1024)
			require.True(t, utf8.ValidString(s))
			require.True(t, strings.HasPrefix(s, string(reason)+": "))
			require.False(t, slices.ContainsFunc([]rune(s), func(r rune) bool { return !unicode.IsPrint(r) }), "%q", s)
		}
	}
}

// A file whose name or state is odd is named on one line.
func TestTexts_OddFileNames(t *testing.T) {
	path := t.TempDir() + "/a\nb\u202e\x1b"
	require.NoError(t, os.WriteFile(path, []byte(secretConfig("one")), 0o600))
	c := newCredential(t, path, keyvault.CredentialOptions{Transport: newGate(map[string]string{"one": "AADSTS7000215"})})
	require.NoError(t, os.Remove(path))
	_, err := c.Token(t.Context(), keyvault.TokenRequest{Scope: "https://vault.azure.net/.default"})
	require.Equal(t, keyvault.CredentialsRefused, checkText(t, err, true))
}
