package keyvault_test

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// Case A06, in general: what gives out the tokens of a managed identity is a service
// of this machine, wherever it listens. Neither a proxy nor the forwarding service of
// proxy mode may see the request, which holds a secret.
func TestSignIn_LocalServicesAreAskedDirectly(t *testing.T) {
	config := writeFile(t, `{"useManagedIdentityExtension":true}`)
	for name, env := range map[string]map[string]string{
		"IMDS":        nil,
		"App Service": {"IDENTITY_ENDPOINT": "http://169.254.129.4:8081/msi/token", "IDENTITY_HEADER": "HEADERCANARY"},
	} {
		t.Run(name, func(t *testing.T) {
			host := "169.254.169.254"
			for k, v := range env {
				t.Setenv(k, v)
				host = "169.254.129.4:8081"
			}
			var seen []*http.Request
			d := &directory{answer: func(_ int, _ url.Values, req *http.Request) (*http.Response, error) {
				seen = append(seen, req)
				return nil, nil
			}}
			c := signedIn(t, config, d, newWeb(), keyvault.CredentialOptions{Proxy: &keyvault.ProxyMode{Address: "10.9.9.9", Port: 7788}})
			require.Nil(t, decrypts(t, c))
			require.Len(t, seen, 1)
			require.Equal(t, host, seen[0].URL.Host)
			require.Empty(t, seen[0].Header.Get("x-azure-proxy-target"))
			require.True(t, keyvault.IsLocal(seen[0].Context()), "a proxy would be asked")
		})
	}
}

// Case K04, in general: the page of a device on the way is no refusal of the
// credential, which would be obeyed after minutes, and neither is a fault that the
// directory calls transient.
func TestSignIn_AnswersOfOthers(t *testing.T) {
	page := func(status int) func(*http.Request) *http.Response {
		return func(req *http.Request) *http.Response { return reply(req, status, "<html>CANARY</html>") }
	}
	says := func(status int, body string) func(*http.Request) *http.Response {
		return func(req *http.Request) *http.Response { return reply(req, status, body) }
	}
	for name, tt := range map[string]struct {
		answer func(*http.Request) *http.Response
		reason keyvault.Reason
		cause  keyvault.Cause
		text   string
	}{
		"page, 400":       {page(400), keyvault.CredentialsUnavailable, keyvault.CauseProxy, "a proxy may have answered in its place"},
		"page, 401":       {page(401), keyvault.CredentialsUnavailable, keyvault.CauseProxy, "a proxy may have answered in its place"},
		"page, 200":       {page(200), keyvault.CredentialsUnavailable, "", "is not a token"},
		"empty, 200":      {says(200, ""), keyvault.CredentialsUnavailable, "", "is not a token"},
		"no token":        {says(200, `{"token_type":"Bearer","expires_in":3600,"x":"CANARY"}`), keyvault.CredentialsUnavailable, "", "token"},
		"cut":             {says(200, `{"access_token":"CANARY`), keyvault.CredentialsUnavailable, "", "is not a token"},
		"later":           {says(400, `{"error":"temporarily_unavailable","error_description":"CANARY"}`), keyvault.CredentialsUnavailable, keyvault.CauseServer, "now (http 400"},
		"later, by code":  {says(400, `{"error":"invalid_request","error_description":"AADSTS90033: CANARY"}`), keyvault.CredentialsUnavailable, keyvault.CauseServer, "AADSTS90033"},
		"a true refusal":  {says(400, `{"error":"unauthorized_client","error_description":"AADSTS700016: CANARY"}`), keyvault.CredentialsRefused, "", "AADSTS700016"},
		"without a code":  {says(401, `{"error":"invalid_client"}`), keyvault.CredentialsRefused, "", "http 401"},
		"a wrong address": {page(404), keyvault.CredentialsUnavailable, keyvault.CauseServer, "http 404"},
	} {
		for config, method := range map[string]string{
			string(secretConfig("one")):            "client secret",
			`{"useManagedIdentityExtension":true}`: "managed identity",
		} {
			t.Run(name+", "+method, func(t *testing.T) {
				path := writeFile(t, config)
				synctest.Test(t, func(t *testing.T) {
					d := &directory{answer: func(_ int, _ url.Values, req *http.Request) (*http.Response, error) { return tt.answer(req), nil }}
					c := signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{})
					_, err := c.Decrypt(keyvault.Background(t.Context()), key1, []byte("block"))
					e := failure(t, err)
					require.Equal(t, tt.reason, e.Reason, e.Text)
					require.Equal(t, tt.cause, e.Cause, e.Text)
					require.Contains(t, e.Text, tt.text)
					require.NotContains(t, e.Text, "CANARY")
				})
			})
		}
	}
}

// Case K04: a redirect of the sign-in host is not followed, since it would post the
// secret once more.
func TestSignIn_RedirectIsNotFollowed(t *testing.T) {
	for _, status := range []int{302, 307, 308} {
		path := writeFile(t, string(secretConfig("one")))
		synctest.Test(t, func(t *testing.T) {
			d := &directory{answer: func(_ int, _ url.Values, req *http.Request) (*http.Response, error) {
				resp := reply(req, status, "")
				resp.Header.Set("Location", "https://elsewhere.example/token")
				return resp, nil
			}}
			e := decrypts(t, signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{}))
			require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
			require.Contains(t, e.Text, "login.microsoftonline.com")
			for _, host := range d.hosts {
				require.Equal(t, "login.microsoftonline.com", host)
			}
		})
	}
}

// Case K07, in general: one fault of the sign-in host costs a call no more than a
// second request.
func TestSignIn_SurvivesOneFault(t *testing.T) {
	for name, fault := range map[string]func(*http.Request) (*http.Response, error){
		"503":   func(req *http.Request) (*http.Response, error) { return reply(req, 503, ""), nil },
		"reset": func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, string(secretConfig("one")))
			synctest.Test(t, func(t *testing.T) {
				d := &directory{answer: func(n int, _ url.Values, req *http.Request) (*http.Response, error) {
					if n == 1 {
						return fault(req)
					}
					return nil, nil
				}}
				require.Nil(t, decrypts(t, signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{})))
				require.Len(t, d.asked(), 2)
			})
		})
	}
}

// Case K09, in general: who waits for a token is told what that waits for, though the
// request for it outlives any caller.
func TestAuth_WhyThereIsNoTokenYet(t *testing.T) {
	path := writeFile(t, string(secretConfig("one")))
	synctest.Test(t, func(t *testing.T) {
		d := &directory{answer: func(_ int, _ url.Values, req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}}
		c := signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{})
		e := decrypts(t, c)
		require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
		require.Equal(t, keyvault.CauseTimeout, e.Cause)
		require.Equal(t, "no token came within 2.9 s, so kvlab.vault.azure.net was not asked: no answer from login.microsoftonline.com", e.Text)
		_, err := c.Decrypt(keyvault.Background(t.Context()), key1, []byte("block"))
		require.Contains(t, failure(t, err).Text, "login.microsoftonline.com")

		// A fault that came before the wait is what is said.
		met := false
		d.answer = func(_ int, _ url.Values, req *http.Request) (*http.Response, error) {
			if !met {
				met = true
				return nil, errConnectionRefused
			}
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
		time.Sleep(time.Minute)
		e = decrypts(t, c)
		require.Contains(t, e.Text, "login.microsoftonline.com")
		require.Contains(t, e.Text, "connection refused")
		time.Sleep(time.Minute)
	})
}

// Case K04: once a token has been taken, a page with status 401 is still no refusal.
func TestAuth_PageInPlaceOfTheVault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{}
		c, _ := newClient(t, w, b)
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err)
		w.answer = func(r request) (*http.Response, error) {
			resp := reply(r.http, 401, "<html>CANARY</html>")
			resp.Header = http.Header{"Content-Type": {"text/html"}}
			return resp, nil
		}
		_, err = c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		e := failure(t, err)
		require.Equal(t, keyvault.Unreachable, e.Reason)
		require.Equal(t, keyvault.CauseProxy, e.Cause)
		require.Contains(t, e.Text, "a proxy may have answered in its place")
		require.Equal(t, 1, b.fetched(), "the token is not to blame")
	})
}

// An identity that the directory has refused does not keep out an older one.
func TestSignIn_DataPlaneOlderButGood(t *testing.T) {
	path := t.TempDir() + "/identity"
	config := writeFile(t, `{"aadMSIDataPlaneIdentityPath":"`+path+`"}`)
	synctest.Test(t, func(t *testing.T) {
		put := func(age time.Duration) {
			f := identityFields(t)
			f["not_before"] = time.Now().Add(-age).UTC().Format(time.RFC3339)
			cert := selfSigned(t, testKey(t), time.Now().Add(-48*time.Hour), time.Now().Add(48*time.Hour+age))
			f["client_secret"] = base64.StdEncoding.EncodeToString(pemOf(t, testKey(t), cert))
			writeIdentity(t, path, f)
		}
		var bad string // the head of an assertion names its certificate
		d := &directory{}
		d.answer = func(_ int, form url.Values, req *http.Request) (*http.Response, error) {
			head, _, _ := strings.Cut(form.Get("client_assertion"), ".")
			if bad == "" {
				bad = head
			}
			if head == bad {
				return refuseSignIn(req, "AADSTS700027"), nil
			}
			return nil, nil
		}
		put(0)
		c := signedIn(t, config, d, newWeb(), keyvault.CredentialOptions{})
		require.Equal(t, keyvault.CredentialsRefused, decrypts(t, c).Reason)
		put(time.Hour)
		time.Sleep(time.Minute)
		require.Nil(t, decrypts(t, c))
	})
}

// A vault of another tenant says nothing about the identity that this one takes.
func TestFallBack_NotForgottenForAnotherVault(t *testing.T) {
	path := writeFile(t, string(secretConfig("one")))
	synctest.Test(t, func(t *testing.T) {
		g, w := newGate(map[string]string{"two": "AADSTS7000215"}), newWeb()
		c := signedIn(t, path, &g.directory, w, keyvault.CredentialOptions{})
		require.Nil(t, decrypts(t, c))
		ours := w.challenge
		w.challenge = `Bearer authorization="https://login.microsoftonline.com/99999999-2222-3333-4444-555555555555", resource="https://vault.azure.net"`
		elsewhere := key1
		elsewhere.Host = "other.vault.azure.net"
		_, err := c.Decrypt(within(t, 3*time.Second), elsewhere, []byte("block"))
		require.Contains(t, failure(t, err).Text, "the vault belongs to another tenant than the credential: check tenantId in azure.json")
		w.challenge = ours
		require.NoError(t, os.WriteFile(path, secretConfig("two"), 0o600))
		time.Sleep(time.Minute)
		require.Nil(t, decrypts(t, c))
		require.Equal(t, []string{"two", "one"}, g.sent(1))
	})
}

// While the file system of azure.json hangs, what was read before signs in.
func TestCredential_FilesThatHang(t *testing.T) {
	path := writeFile(t, string(secretConfig("one")))
	synctest.Test(t, func(t *testing.T) {
		g, seen := newGate(nil), &journal{}
		cfg, err := keyvault.ReadConfig(path)
		require.NoError(t, err)
		o := seen.options(keyvault.CredentialOptions{Transport: &g.directory})
		cred, err := keyvault.NewCredential(cfg, o)
		require.NoError(t, err)
		release := keyvault.HangFiles(cred)
		require.NoError(t, os.WriteFile(path, secretConfig("two"), 0o600))
		token := func() {
			_, err := cred.Token(t.Context(), keyvault.TokenRequest{Scope: "https://vault.azure.net/.default", TenantID: testTenant})
			require.NoError(t, err)
		}
		for range 3 {
			token()
		}
		require.Equal(t, []string{"one", "one", "one"}, g.sent(0))
		warns, _ := seen.take()
		require.Len(t, warns, 1)
		require.Contains(t, warns[0], "cannot be read within 2s: its file system hangs, or it takes too long to decode; what was read before is still used")
		release()
		token()
		require.Equal(t, []string{"two"}, g.sent(3))
		_, infos := seen.take()
		require.Len(t, infos, 1)
	})
}

// A hang that begins when the new identity has been read and refused leaves the old one
// its way back; and what reads a file may panic without taking the process with it.
func TestFallBack_FilesThatHang(t *testing.T) {
	path := writeFile(t, string(secretConfig("one")))
	synctest.Test(t, func(t *testing.T) {
		g := newGate(map[string]string{"two": "AADSTS7000215"})
		cfg, err := keyvault.ReadConfig(path)
		require.NoError(t, err)
		cred, err := keyvault.NewCredential(cfg, keyvault.CredentialOptions{Transport: &g.directory})
		require.NoError(t, err)
		token := func(scope string) error {
			_, err := cred.Token(t.Context(), keyvault.TokenRequest{Scope: scope, TenantID: testTenant})
			return err
		}
		const vault, hsm = "https://vault.azure.net/.default", "https://managedhsm.azure.net/.default"
		require.NoError(t, token(vault))
		require.NoError(t, token(hsm))
		require.NoError(t, os.WriteFile(path, secretConfig("two"), 0o600))
		var release func()
		refuse := g.answer
		g.answer = func(n int, form url.Values, req *http.Request) (*http.Response, error) {
			if release == nil {
				release = keyvault.HangFiles(cred)
			}
			return refuse(n, form, req)
		}
		require.NoError(t, token(vault))
		require.Equal(t, []string{"two", "one"}, g.sent(2))
		release()

		require.ErrorContains(t, keyvault.Look(cred, func() { panic("CANARY") }), "has panicked (string)")
		// What was taken for both is forgotten when one of them refuses it.
		require.NoError(t, os.WriteFile(path, secretConfig("one"), 0o600))
		require.NoError(t, token(hsm))
		g.refused["one"] = "AADSTS7000222"
		require.Error(t, token(vault))
		require.NoError(t, os.WriteFile(path, secretConfig("two"), 0o600))
		sent := len(g.forms)
		require.Error(t, token(vault))
		require.Equal(t, []string{"two"}, g.sent(sent), "the old one is not sent any more")
	})
}

// Azure Arc first answers with a challenge that names a file.
func TestSignIn_ChallengeOfTheMachinesService(t *testing.T) {
	path := writeFile(t, `{"useManagedIdentityExtension":true}`)
	t.Setenv("IDENTITY_ENDPOINT", "http://127.0.0.1:40342/metadata/identity/oauth2/token")
	t.Setenv("IMDS_ENDPOINT", "http://127.0.0.1:40342")
	d := &directory{answer: func(_ int, _ url.Values, req *http.Request) (*http.Response, error) {
		resp := reply(req, 401, "")
		resp.Header.Set("WWW-Authenticate", "Basic realm="+t.TempDir()+"/missing.key")
		return resp, nil
	}}
	e := decrypts(t, signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{}))
	require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
	require.Contains(t, e.Text, "must be able to read the key files of its agent")
	require.NotContains(t, e.Text, "proxy")
}
