package keyvault_test

import (
	"net/http"
	"net/url"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// A gate is a sign-in host that refuses some secrets and federated tokens, each
// with a code.
type gate struct {
	directory
	refused map[string]string
}

func (g *gate) secret(form url.Values) string {
	return form.Get("client_secret") + form.Get("client_assertion")
}

// sent is which were sent since the n-th token request.
func (g *gate) sent(n int) []string {
	var sent []string
	for _, form := range g.forms[n:] {
		sent = append(sent, g.secret(form))
	}
	return sent
}

func newGate(refused map[string]string) *gate {
	g := &gate{directory: directory{life: time.Minute}, refused: refused}
	g.answer = func(_ int, form url.Values, req *http.Request) (*http.Response, error) {
		switch code := g.refused[g.secret(form)]; code {
		case "":
			return nil, nil
		case "500":
			return reply(req, 500, ""), nil
		default:
			return refuseSignIn(req, code), nil
		}
	}
	return g
}

func secretConfig(secret string) []byte {
	return []byte(`{"tenantId":"` + testTenant + `","aadClientId":"app","aadClientSecret":"` + secret + `"}`)
}

// Whatever the next version of a file is, wrong or half there, the old one goes
// on for as long as it is taken. That is said once; and the new one is asked for
// each time that a token is due, and used once it is good.
func TestFallBack_UntilTheNewOneIsTaken(t *testing.T) {
	path := writeFile(t, string(secretConfig("one")))
	synctest.Test(t, func(t *testing.T) {
		g, seen := newGate(map[string]string{"two": "AADSTS7000215"}), &journal{}
		c := signedIn(t, path, &g.directory, newWeb(), seen.options(keyvault.CredentialOptions{}))
		require.Nil(t, decrypts(t, c))
		require.NoError(t, os.WriteFile(path, secretConfig("two"), 0o600))
		for range 5 {
			time.Sleep(time.Minute)
			require.Nil(t, decrypts(t, c))
		}
		require.Equal(t, slices.Repeat([]string{"two", "one"}, 5), g.sent(1))
		// The file is gone, and what it said last was refused.
		require.NoError(t, os.Rename(path, path+".away"))
		time.Sleep(time.Minute)
		require.Nil(t, decrypts(t, c))
		require.NoError(t, os.Rename(path+".away", path))
		warns, infos := seen.take()
		require.Len(t, warns, 2)
		require.Equal(t, "login.microsoftonline.com refuses the client secret (http 401, AADSTS7000215): "+
			"aadClientSecret is wrong (a secret's value is needed, not its ID); what was read before is still used", warns[0])
		require.Contains(t, warns[1], "no such file")
		require.Empty(t, infos)

		g.refused = nil
		sent := len(g.forms)
		for range 2 {
			time.Sleep(time.Minute)
			require.Nil(t, decrypts(t, c))
		}
		warns, infos = seen.take()
		require.Empty(t, warns)
		require.Len(t, infos, 1)
		// From then on there is no way back, and one request for a token.
		g.refused = map[string]string{"two": "AADSTS7000222"}
		time.Sleep(time.Minute)
		require.Contains(t, decrypts(t, c).Text, "AADSTS7000222")
		require.Equal(t, []string{"two", "two", "two"}, g.sent(sent))
	})
}

// Where the old one does not help, the new one's refusal is what is said, and
// the sign-in host is asked at the pace of refusals.
func TestFallBack_BothRefused(t *testing.T) {
	path := writeFile(t, string(secretConfig("one")))
	synctest.Test(t, func(t *testing.T) {
		g, seen := newGate(map[string]string{}), &journal{}
		c := signedIn(t, path, &g.directory, newWeb(), seen.options(keyvault.CredentialOptions{}))
		require.Nil(t, decrypts(t, c))
		require.NoError(t, os.WriteFile(path, secretConfig("two"), 0o600))
		g.refused = map[string]string{"one": "AADSTS7000222", "two": "AADSTS7000215"}
		time.Sleep(time.Minute)
		e := hammer(t, c, key1, 2*time.Minute)
		require.Equal(t, keyvault.CredentialsRefused, e.Reason)
		require.Contains(t, e.Text, "AADSTS7000215")
		sent := g.sent(1)
		require.Equal(t, []string{"two", "one", "two"}, sent[:3])
		require.NotContains(t, sent[3:], "one", "it is forgotten")
		require.LessOrEqual(t, len(sent), 10)
		delete(g.refused, "two")
		time.Sleep(31 * time.Second)
		require.Nil(t, decrypts(t, c))
		warns, infos := seen.take()
		require.Empty(t, warns, "the calls have failed, which is said elsewhere")
		require.Empty(t, infos)
	})
}

// A vault that refuses every token, while the new secret is refused as well,
// makes us ask the sign-in host no more often than its refusals alone.
func TestFallBack_PaceWithAVaultThatRefuses(t *testing.T) {
	path := writeFile(t, string(secretConfig("one")))
	synctest.Test(t, func(t *testing.T) {
		g, w := newGate(map[string]string{"two": "AADSTS7000215"}), newWeb()
		c := signedIn(t, path, &g.directory, w, keyvault.CredentialOptions{})
		require.Nil(t, decrypts(t, c))
		g.life = time.Hour
		require.NoError(t, os.WriteFile(path, secretConfig("two"), 0o600))
		w.answer = func(r request) (*http.Response, error) { return refuse(w, r.token)(r) }
		hammer(t, c, key1, time.Minute)
		require.LessOrEqual(t, len(g.forms), 2*10)
	})
}

// Only a refusal leads back: a sign-in host in trouble says nothing about the
// new secret. And a federated token is not sent after its end.
func TestFallBack_NotTried(t *testing.T) {
	for name, tt := range map[string]struct {
		code string
		life time.Duration // of the old token
		back bool
	}{
		"refused":          {"AADSTS50027", time.Hour, true},
		"in trouble":       {"500", time.Hour, false},
		"the old one over": {"AADSTS50027", 30 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, "")
			config := writeFile(t, `{"useWorkloadIdentityExtension":true}`)
			synctest.Test(t, func(t *testing.T) {
				old := jwt(time.Now().Add(tt.life))
				cut := jwt(time.Now().Add(2 * time.Hour))[:len(old)-4]
				require.NoError(t, os.WriteFile(path, []byte(old), 0o600))
				g := newGate(map[string]string{cut: tt.code})
				c := signedIn(t, config, &g.directory, newWeb(), keyvault.CredentialOptions{
					WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: testTenant, TokenFile: path},
				})
				require.Nil(t, decrypts(t, c))
				require.NoError(t, os.WriteFile(path, []byte(cut), 0o600))
				time.Sleep(time.Minute)
				e := decrypts(t, c)
				require.Equal(t, tt.back, e == nil, "%v", e)
				require.Equal(t, tt.back, slices.Contains(g.sent(1), old))
				if tt.back {
					// With the file gone, the old one is what is left, and the
					// refused one is not sent again.
					sent := len(g.forms)
					require.NoError(t, os.Remove(path))
					time.Sleep(time.Minute)
					require.Nil(t, decrypts(t, c))
					require.Equal(t, []string{old}, g.sent(sent))
				}
			})
		})
	}
}

// While azure.json is half there and says something else, what the old one names
// is still read: its federated token would end before somebody looks.
func TestFallBack_OldConfigsFilesAreRead(t *testing.T) {
	token, path := writeFile(t, ""), writeFile(t, `{"useWorkloadIdentityExtension":true}`)
	synctest.Test(t, func(t *testing.T) {
		put := func() (federated string) {
			federated = jwt(time.Now().Add(2 * time.Minute))
			require.NoError(t, os.WriteFile(token, []byte(federated), 0o600))
			return federated
		}
		put()
		g, seen := newGate(map[string]string{"hal": "AADSTS7000215"}), &journal{}
		c := signedIn(t, path, &g.directory, newWeb(), seen.options(keyvault.CredentialOptions{
			WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: testTenant, TokenFile: token},
		}))
		require.Nil(t, decrypts(t, c))
		require.NoError(t, os.WriteFile(path, []byte("tenantId: "+testTenant+"\naadClientId: app\naadClientSecret: hal"), 0o600))
		for range 5 {
			time.Sleep(time.Minute)
			federated := put()
			require.Nil(t, decrypts(t, c))
			require.Equal(t, []string{"hal", federated}, g.sent(len(g.forms)-2))
		}
		warns, infos := seen.take()
		require.Len(t, warns, 1)
		require.Empty(t, infos)
	})
}

// A file that no sign-in could use is not used, and no request is made of it.
func TestFallBack_UselessFiles(t *testing.T) {
	token := writeFile(t, "")
	path := writeFile(t, "")
	write := func(config, federated string) {
		require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
		require.NoError(t, os.WriteFile(token, []byte(federated), 0o600))
	}
	const workload, shape = `{"useWorkloadIdentityExtension":true}`, "half written, or not a token"
	good := federated("one")
	header, payload, signature := good[:20], good[21:len(good)-5], good[len(good)-4:]
	require.Equal(t, good, header+"."+payload+"."+signature)
	for federatedToken, want := range map[string]string{
		"opaque":                        shape,
		"..":                            shape,
		header:                          shape,
		header + "." + payload:          shape,
		header + "." + payload + ".":    shape,
		header + ".." + signature:       shape,
		"." + payload + "." + signature: shape,
		good + ".more":                  shape,
		good + "\nQUFB":                 shape,
		good + "=":                      shape,
		good + "x":                      shape,
		header[:16] + "." + payload + "." + signature: shape,
		header + "." + payload[:8] + "." + signature:  shape,
		"W10." + payload + "." + signature:            shape, // []
		header + ".bnVsbA." + signature:               shape, // null
		"":                                            "empty file",
	} {
		synctest.Test(t, func(t *testing.T) {
			write(workload, good)
			g, seen := newGate(nil), &journal{}
			c := signedIn(t, path, &g.directory, newWeb(), seen.options(keyvault.CredentialOptions{
				WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: testTenant, TokenFile: token},
			}))
			require.Nil(t, decrypts(t, c))
			write(workload, federatedToken)
			for range 2 {
				time.Sleep(time.Minute)
				require.Nil(t, decrypts(t, c))
			}
			require.Equal(t, []string{good, good, good}, g.sent(0), federatedToken)
			warns, _ := seen.take()
			require.Len(t, warns, 1)
			require.Contains(t, warns[0], "the federated token: "+token+": "+want)

			// So is a tenant that nobody can have.
			write(`{"tenantId":"a b","aadClientId":"app","aadClientSecret":"CANARY"}`, good)
			time.Sleep(time.Minute)
			require.Nil(t, decrypts(t, c))
			require.Equal(t, good, g.sent(0)[3])
			warns, _ = seen.take()
			require.Len(t, warns, 1)
			require.Contains(t, warns[0], "tenantId in azure.json: invalid tenantID")
			require.NotContains(t, warns[0], "CANARY")
		})
	}
}
