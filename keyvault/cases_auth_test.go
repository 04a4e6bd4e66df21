package keyvault_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

const testTenant = "11111111-2222-3333-4444-555555555555"

// Case A01: while a valid token is cached, a directory that throttles for a
// minute costs nobody anything.
func TestSignIn_ThrottledWhileTheTokenIsValid(t *testing.T) {
	path := writeFile(t, `{"tenantId":"`+testTenant+`","aadClientId":"app","aadClientSecret":"s"}`)
	synctest.Test(t, func(t *testing.T) {
		d := &directory{}
		c := signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{})
		require.Nil(t, decrypts(t, c))
		time.Sleep(56 * time.Minute) // the next one is due
		end := time.Now().Add(time.Minute)
		d.answer = func(_ int, _ url.Values, req *http.Request) (*http.Response, error) {
			if time.Now().After(end) {
				return nil, nil
			}
			resp := refuseSignIn(req, "AADSTS90033")
			resp.StatusCode = 429
			resp.Header.Set("Retry-After", "20")
			return resp, nil
		}
		for range 90 {
			require.Nil(t, decrypts(t, c))
			time.Sleep(time.Second)
		}
		times := d.asked()[1:]
		require.LessOrEqual(t, len(times), 4+1, "Retry-After is honoured")
		time.Sleep(30 * time.Minute)
		require.Nil(t, decrypts(t, c), "the new one is there")
	})
}

// Case A04: the federated token on disk is used at the next exchange.
func TestSignIn_FederatedTokenIsReread(t *testing.T) {
	vol := &projected{dir: t.TempDir()}
	vol.put(t, "token", []byte(federated("J1")+"\n"))
	path := writeFile(t, `{"useWorkloadIdentityExtension":true}`)
	synctest.Test(t, func(t *testing.T) {
		good := federated("J1")
		d := &directory{life: 90 * time.Second}
		d.answer = func(_ int, form url.Values, req *http.Request) (*http.Response, error) {
			if form.Get("client_assertion") != good {
				return refuseSignIn(req, "AADSTS700024"), nil
			}
			return nil, nil
		}
		seen := &journal{}
		c := signedIn(t, path, d, newWeb(), seen.options(keyvault.CredentialOptions{
			WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: testTenant, TokenFile: vol.path("token")},
		}))
		for second := range 300 {
			switch second {
			case 60:
				good = federated("J2")
				vol.put(t, "token", []byte(federated("J2")))
			case 150: // kubelet is about it, and J2 is no longer good
				good = federated("J3")
				vol.put(t, "token", []byte{})
			case 155:
				vol.put(t, "token", []byte(federated("J3")+"\r\n"))
			}
			require.Nil(t, decrypts(t, c), "second %d", second)
			time.Sleep(time.Second)
		}
		var sent []string
		for _, form := range d.forms {
			sent = append(sent, form.Get("client_assertion"))
		}
		require.Equal(t, []string{federated("J1"), federated("J2"), federated("J3")}, slices.Compact(sent))
		require.Less(t, len(sent), 12)
	})

	// An empty file at the first exchange is a failure that passes.
	vol.put(t, "token", []byte{})
	synctest.Test(t, func(t *testing.T) {
		c := signedIn(t, path, &directory{}, newWeb(), keyvault.CredentialOptions{
			WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: testTenant, TokenFile: vol.path("token")},
		})
		e := decrypts(t, c)
		require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
		require.Contains(t, e.Text, "empty file")
		time.Sleep(5 * time.Second)
		require.NotNil(t, decrypts(t, c))
		vol.put(t, "token", []byte(federated("J4")))
		time.Sleep(5 * time.Second)
		require.Nil(t, decrypts(t, c))
	})
}

// Case A05: whatever passes at the metadata service passes here, and it is
// asked once a second at most.
func TestSignIn_MetadataServiceRecovers(t *testing.T) {
	path := writeFile(t, `{"useManagedIdentityExtension":true}`)
	statuses := func(list ...int) func(int, *http.Request) (*http.Response, error) {
		return func(n int, req *http.Request) (*http.Response, error) {
			if n > len(list) {
				return nil, nil
			}
			return metadataError(req, list[n-1], "later"), nil
		}
	}
	for name, tt := range map[string]struct {
		answer  func(n int, req *http.Request) (*http.Response, error)
		within  time.Duration
		minimum time.Duration // between the first two requests
	}{
		"410,410,200": {answer: statuses(410, 410), within: 6 * time.Second},
		"500×3,200":   {answer: statuses(500, 500, 500), within: 9 * time.Second},
		"404×2,200":   {answer: statuses(404, 404), within: 6 * time.Second},
		"429 with Retry-After 2": {answer: func(n int, req *http.Request) (*http.Response, error) {
			if n > 1 {
				return nil, nil
			}
			resp := metadataError(req, 429, "later")
			resp.Header.Set("Retry-After", "2")
			return resp, nil
		}, within: 4 * time.Second, minimum: 2 * time.Second},
		"429 with Retry-After 20": {answer: func(n int, req *http.Request) (*http.Response, error) {
			if n > 1 {
				return nil, nil
			}
			resp := metadataError(req, 429, "later")
			resp.Header.Set("Retry-After", "20")
			return resp, nil
		}, within: 22 * time.Second, minimum: 20 * time.Second},
		"6 s of delay": {answer: func(n int, req *http.Request) (*http.Response, error) {
			if n > 1 {
				return nil, nil
			}
			return nil, wait(request{http: req}, 6*time.Second)
		}, within: 7 * time.Second},
		"refused for 90 s": {answer: func() func(int, *http.Request) (*http.Response, error) {
			var end time.Time
			return func(int, *http.Request) (*http.Response, error) {
				if end.IsZero() {
					end = time.Now().Add(90 * time.Second)
				}
				if time.Now().Before(end) {
					return nil, errConnectionRefused
				}
				return nil, nil
			}
		}(), within: 96 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &directory{}
				d.answer = func(n int, _ url.Values, req *http.Request) (*http.Response, error) { return tt.answer(n, req) }
				c := signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{})
				start := time.Now()
				for {
					e := decrypts(t, c)
					if e == nil {
						break
					}
					require.Equal(t, keyvault.CredentialsUnavailable, e.Reason, "%s", e.Text)
					require.Less(t, time.Since(start), tt.within)
					time.Sleep(100 * time.Millisecond)
				}
				require.LessOrEqual(t, time.Since(start), tt.within)
				times := d.asked()
				for i := 1; i < len(times); i++ {
					require.GreaterOrEqual(t, times[i].Sub(times[i-1]), max(time.Second, tt.minimum))
				}
			})
		})
	}
}

// Case A05: what the machine must change is said in the service's words, and
// asked for once a minute.
func TestSignIn_MetadataServiceKnowsNoIdentity(t *testing.T) {
	for name, tt := range map[string]struct{ config, said, mend string }{
		"several":      {`{"useManagedIdentityExtension":true}`, "Multiple user assigned identities exist", "set userAssignedIdentityID"},
		"none":         {`{"useManagedIdentityExtension":true}`, "Identity not found", "no system-assigned identity"},
		"not assigned": {`{"useManagedIdentityExtension":true,"userAssignedIdentityID":"` + testTenant + `"}`, "Identity not found", "not an identity of this machine"},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, tt.config)
			synctest.Test(t, func(t *testing.T) {
				d := &directory{}
				d.answer = func(_ int, _ url.Values, req *http.Request) (*http.Response, error) {
					return metadataError(req, 400, tt.said+", CANARY"), nil
				}
				c := signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{})
				for range 300 {
					e := decrypts(t, c)
					require.Equal(t, keyvault.CredentialsRefused, e.Reason)
					require.Contains(t, e.Text, tt.said)
					require.Contains(t, e.Text, tt.mend)
					require.NotContains(t, e.Text, "CANARY")
					time.Sleep(time.Second)
				}
				times := d.asked()
				require.Len(t, times, 5)
				for i := 1; i < len(times); i++ {
					require.GreaterOrEqual(t, times[i].Sub(times[i-1]), time.Minute)
				}
				// The identity is assigned, or azure.json names another.
				require.NoError(t, os.WriteFile(path, []byte(`{"useManagedIdentityExtension":true,"userAssignedIdentityID":"99999999-2222-3333-4444-555555555555"}`), 0o600))
				d.answer = func(_ int, form url.Values, req *http.Request) (*http.Response, error) {
					if form.Get("client_id") != "99999999-2222-3333-4444-555555555555" {
						return metadataError(req, 400, tt.said), nil
					}
					return nil, nil
				}
				time.Sleep(time.Minute)
				require.Nil(t, decrypts(t, c))
			})
		})
	}
}

// Case A08: clouds with names of their own work; nobody else's word makes a
// token go anywhere; no header is an end and not a loop.
func TestAuth_CustomCloudChallenges(t *testing.T) {
	const guid = "99999999-2222-3333-4444-555555555555"
	custom := keyvault.Ref{Host: "kv.vault.local.example", Name: "k1", Version: v1}
	for name, tt := range map[string]struct{ challenge, scope, text string }{
		"parent, with a path": {`Bearer authorization="https://adfs.local.example/adfs", resource="https://vault.local.example/` + guid + `"`, "https://vault.local.example/" + guid + "/.default", ""},
		"parent":              {`Bearer authorization="https://adfs.local.example/adfs", resource="https://vault.local.example"`, "https://vault.local.example/.default", ""},
		"unrelated":           {`Bearer authorization="https://login.microsoftonline.com/t", resource="https://vault.azure.net"`, "", "not its own domain: no token was requested or sent"},
		"unrelated, similar":  {`Bearer authorization="https://l/t", resource="https://ault.local.example"`, "", "not its own domain"},
		"missing":             {"", "", "401 without a WWW-Authenticate header"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, b := newWeb(), &bank{}
				w.challenge = tt.challenge
				w.answer = func(r request) (*http.Response, error) {
					return reply(r.http, 200, fmt.Sprintf(`{"kid":"https://%s/keys/k1/%s","value":"AAAA"}`, custom.Host, v1)), nil
				}
				c, _ := newClient(t, w, b)
				_, err := c.Decrypt(within(t, 3*time.Second), custom, []byte("block"))
				if tt.scope != "" {
					require.NoError(t, err)
					require.Equal(t, tt.scope, b.requests[0].Scope)
					return
				}
				e := failure(t, err)
				require.Equal(t, keyvault.Unreachable, e.Reason)
				require.Contains(t, e.Text, tt.text)
				require.Zero(t, b.fetched())
				require.Len(t, w.requests, 1, "no loop")
				require.Empty(t, w.requests[0].token)
				require.Empty(t, w.requests[0].body)
			})
		})
	}
}

// A secret that the directory refuses is not the end: the one that is written
// meanwhile is used within the pause, and no text shows either.
func TestSignIn_RefusedSecretIsReplaced(t *testing.T) {
	config := func(secret string) string {
		return `{"tenantId":"` + testTenant + `","aadClientId":"app","aadClientSecret":"` + secret + `"}`
	}
	path := writeFile(t, config("OLDCANARY"))
	synctest.Test(t, func(t *testing.T) {
		d := &directory{}
		d.answer = func(_ int, form url.Values, req *http.Request) (*http.Response, error) {
			if form.Get("client_secret") != "NEWCANARY" {
				return refuseSignIn(req, "AADSTS7000222"), nil
			}
			return nil, nil
		}
		seen := &journal{}
		c := signedIn(t, path, d, newWeb(), seen.options(keyvault.CredentialOptions{}))
		for range 120 {
			e := decrypts(t, c)
			require.Equal(t, keyvault.CredentialsRefused, e.Reason)
			require.Contains(t, e.Text, "expired: make a new one")
			require.NotContains(t, e.Text, "CANARY")
			time.Sleep(time.Second)
		}
		// Half of it, first: the refusal says that a newer one cannot be read.
		require.NoError(t, os.WriteFile(path, []byte(config("NEWCANARY")[:90]), 0o600))
		time.Sleep(31 * time.Second)
		e := decrypts(t, c)
		require.Equal(t, keyvault.CredentialsRefused, e.Reason)
		require.Contains(t, e.Text, path)
		require.Contains(t, e.Text, "not valid JSON")
		require.NotContains(t, e.Text, "CANARY")

		require.NoError(t, os.WriteFile(path, []byte(config("NEWCANARY")), 0o600))
		start := time.Now()
		for decrypts(t, c) != nil {
			require.Less(t, time.Since(start), 31*time.Second)
			time.Sleep(time.Second)
		}
		warns, infos := seen.take()
		require.Len(t, warns, 1)
		require.NotContains(t, warns[0], "CANARY")
		require.Len(t, infos, 1)
	})
}

// The kept federated token is used for as long as it says that it is good: past
// that, the file is at fault, and not the directory.
func TestSignIn_KeptTokenEnds(t *testing.T) {
	vol := &projected{dir: t.TempDir()}
	path := writeFile(t, `{"useWorkloadIdentityExtension":true}`)
	synctest.Test(t, func(t *testing.T) {
		vol.put(t, "token", []byte(jwt(time.Now().Add(time.Hour))))
		d := &directory{life: time.Minute}
		c := signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{
			WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: testTenant, TokenFile: vol.path("token")},
		})
		require.Nil(t, decrypts(t, c))
		vol.put(t, "token", nil)
		time.Sleep(50 * time.Minute)
		require.Nil(t, decrypts(t, c))
		before := len(d.asked())
		time.Sleep(11 * time.Minute)
		e := decrypts(t, c)
		require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
		require.Contains(t, e.Text, "no such file")
		require.Len(t, d.asked(), before, "it was not sent any more")
		require.True(t, errors.Is(e, os.ErrNotExist))
	})
}

// Case A06: no spelling of the variables makes the transport ask a proxy for a
// service of this machine. Go reads them once in a process, so each has one of its
// own.
func TestTransport_NoProxyForTheMetadataService(t *testing.T) {
	if os.Getenv("TEST_PROXY") == "" {
		for _, names := range [][]string{{"HTTP_PROXY", "HTTPS_PROXY"}, {"http_proxy", "https_proxy"}} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestTransport_NoProxyForTheMetadataService$", "-test.v")
			cmd.Env = append(os.Environ(), "TEST_PROXY=1", "HTTP_PROXY=", "HTTPS_PROXY=", "http_proxy=", "https_proxy=", "NO_PROXY=", "no_proxy=")
			for _, name := range names {
				cmd.Env = append(cmd.Env, name+"=http://u:PWCANARY@127.0.0.1:3128")
			}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "--- PASS: TestTransport_NoProxyForTheMetadataService")
		}
		return
	}
	for _, url := range []string{
		"http://169.254.169.254/metadata/identity/oauth2/token", "http://169.254.129.4:8081/msi/token",
		"https://kvlab.vault.azure.net/", "https://login.microsoftonline.com/",
	} {
		for _, local := range []bool{true, false} {
			ctx := t.Context()
			if local {
				ctx = keyvault.Local(ctx)
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			require.NoError(t, err)
			u, err := keyvault.ProxyFor(req)
			require.NoError(t, err)
			require.Equal(t, local, u == nil, url)
		}
	}
}
