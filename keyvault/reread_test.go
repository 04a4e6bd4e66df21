package keyvault_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// azure.json may say something else altogether: the next token is fetched as it
// says, if all that it names is there, and as before if not.
func TestReread_OtherWaysToSignIn(t *testing.T) {
	dir := t.TempDir()
	path, cert, identity, token := filepath.Join(dir, "azure.json"), filepath.Join(dir, "cert"), filepath.Join(dir, "identity"), filepath.Join(dir, "token")
	write := func(fields map[string]any) {
		data, err := json.Marshal(fields)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
	synctest.Test(t, func(t *testing.T) {
		write(map[string]any{"tenantId": testTenant, "aadClientId": "one", "aadClientSecret": "s"})
		d := &directory{life: time.Minute}
		seen := &journal{}
		c := signedIn(t, path, d, newWeb(), seen.options(keyvault.CredentialOptions{
			WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "five", TenantID: testTenant, TokenFile: token},
		}))
		last := func() (string, url.Values) {
			t.Helper()
			require.Nil(t, decrypts(t, c))
			time.Sleep(time.Minute) // the token is over
			return d.hosts[len(d.hosts)-1], d.forms[len(d.forms)-1]
		}
		_, form := last()
		require.Equal(t, "one", form.Get("client_id"))

		write(map[string]any{"tenantId": testTenant, "aadClientId": "two", "aadClientSecret": "other"})
		host, form := last()
		require.Equal(t, "login.microsoftonline.com", host)
		require.Equal(t, []string{"two", "other"}, []string{form.Get("client_id"), form.Get("client_secret")})

		// The file that it names is not there yet.
		write(map[string]any{"tenantId": testTenant, "aadClientId": "three", "aadClientCertPath": cert})
		_, form = last()
		require.Equal(t, "two", form.Get("client_id"))
		_, form = last()
		require.Equal(t, "two", form.Get("client_id"))
		warns, infos := seen.take()
		require.Equal(t, []string{"aadClientCertPath: reading " + cert + ": no such file or directory; what was read before is still used"}, warns)
		require.Empty(t, infos)
		require.NoError(t, os.WriteFile(cert, pemOf(t, testKey(t), selfSigned(t, testKey(t), time.Now().Add(-time.Hour), time.Now().Add(time.Hour))), 0o600))
		_, form = last()
		require.Equal(t, "three", form.Get("client_id"))
		require.NotEmpty(t, form.Get("client_assertion"))
		_, infos = seen.take()
		require.Len(t, infos, 1)

		writeIdentity(t, identity, identityFields(t))
		write(map[string]any{"aadMSIDataPlaneIdentityPath": identity})
		host, form = last()
		require.Equal(t, "westus2.login.microsoft.com", host)
		require.Equal(t, "app", form.Get("client_id"))

		require.NoError(t, os.WriteFile(token, []byte(federated("J1")), 0o600))
		write(map[string]any{"useWorkloadIdentityExtension": true})
		_, form = last()
		require.Equal(t, []string{"five", federated("J1")}, []string{form.Get("client_id"), form.Get("client_assertion")})

		write(map[string]any{"useManagedIdentityExtension": true})
		host, _ = last()
		require.Equal(t, "169.254.169.254", host)
		warns, _ = seen.take()
		require.Empty(t, warns)
	})
}

// While azure.json is of no use, the files that the good one named are still
// read: a federated token lasts an hour, and somebody's slip may last longer.
func TestReread_FilesAreReadWhileAzureJSONIsBroken(t *testing.T) {
	vol := &projected{dir: t.TempDir()}
	vol.put(t, "token", []byte(federated("J1")))
	path := writeFile(t, `{"useWorkloadIdentityExtension":true}`)
	synctest.Test(t, func(t *testing.T) {
		d, seen := &directory{life: time.Minute}, &journal{}
		c := signedIn(t, path, d, newWeb(), seen.options(keyvault.CredentialOptions{
			WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: testTenant, TokenFile: vol.path("token")},
		}))
		require.Nil(t, decrypts(t, c))
		require.NoError(t, os.WriteFile(path, []byte(`{"useWorkloadIdentityExtension":tr`), 0o600))
		vol.put(t, "token", []byte(federated("J2")))
		time.Sleep(time.Minute)
		require.Nil(t, decrypts(t, c))
		require.Equal(t, federated("J2"), d.forms[len(d.forms)-1].Get("client_assertion"))

		// Every fault is said, and each of them once.
		vol.put(t, "token", []byte{})
		for range 3 {
			time.Sleep(time.Minute)
			require.Nil(t, decrypts(t, c))
		}
		warns, infos := seen.take()
		require.Len(t, warns, 2)
		require.Contains(t, warns[0], path+": line 1, column")
		require.Contains(t, warns[1], path+": line 1, column")
		require.Contains(t, warns[1], "empty file")
		require.Empty(t, infos)
		// The same holds for one that is good itself but names what is not there.
		require.NoError(t, os.WriteFile(path, []byte(`{"tenantId":"t","aadClientId":"c","aadClientCertPath":"/no/such/cert"}`), 0o600))
		vol.put(t, "token", []byte(federated("J2b")))
		time.Sleep(time.Minute)
		require.Nil(t, decrypts(t, c))
		require.Equal(t, federated("J2b"), d.forms[len(d.forms)-1].Get("client_assertion"))
		warns, _ = seen.take()
		require.Len(t, warns, 1)
		require.Contains(t, warns[0], "/no/such/cert")

		vol.put(t, "token", []byte(federated("J3")))
		require.NoError(t, os.WriteFile(path, []byte(`{"useWorkloadIdentityExtension":true}`), 0o600))
		time.Sleep(time.Minute)
		require.Nil(t, decrypts(t, c))
		require.Equal(t, federated("J3"), d.forms[len(d.forms)-1].Get("client_assertion"))
		warns, infos = seen.take()
		require.Empty(t, warns)
		require.Len(t, infos, 1)
	})
}

// The vault's host name follows from the cloud, and so do the key and its ID:
// another cloud needs a restart. Another name for the same cloud does not.
func TestReread_CloudStays(t *testing.T) {
	config := func(cloud, secret string) []byte {
		return []byte(`{"cloud":"` + cloud + `","tenantId":"` + testTenant + `","aadClientId":"app","aadClientSecret":"` + secret + `"}`)
	}
	path := writeFile(t, string(config("AzurePublicCloud", "one")))
	synctest.Test(t, func(t *testing.T) {
		d, seen := &directory{life: time.Minute}, &journal{}
		c := signedIn(t, path, d, newWeb(), seen.options(keyvault.CredentialOptions{}))
		require.Nil(t, decrypts(t, c))
		for _, step := range []struct{ cloud, secret, want string }{
			{"AzureChinaCloud", "two", "one"}, {"AzureChinaCloud", "two", "one"}, {"azurecloud", "three", "three"},
		} {
			require.NoError(t, os.WriteFile(path, config(step.cloud, step.secret), 0o600))
			time.Sleep(time.Minute)
			require.Nil(t, decrypts(t, c))
			require.Equal(t, step.want, d.forms[len(d.forms)-1].Get("client_secret"))
			require.Equal(t, "login.microsoftonline.com", d.hosts[len(d.hosts)-1])
		}
		warns, infos := seen.take()
		require.Len(t, warns, 1)
		require.Contains(t, warns[0], "cloud has changed from AzurePublicCloud to AzureChinaCloud")
		require.Contains(t, warns[0], "restart")
		require.Len(t, infos, 1)
	})
}

// Without anybody to report to, all goes on as well.
func TestReread_NobodyListens(t *testing.T) {
	path := writeFile(t, `{"tenantId":"`+testTenant+`","aadClientId":"app","aadClientSecret":"one"}`)
	synctest.Test(t, func(t *testing.T) {
		d := &directory{life: time.Minute}
		d.answer = func(_ int, form url.Values, _ *http.Request) (*http.Response, error) { return nil, nil }
		c := signedIn(t, path, d, newWeb(), keyvault.CredentialOptions{})
		require.Nil(t, decrypts(t, c))
		require.NoError(t, os.Remove(path))
		time.Sleep(time.Minute)
		require.Nil(t, decrypts(t, c))
		require.NoError(t, os.WriteFile(path, []byte(`{"tenantId":"`+testTenant+`","aadClientId":"app","aadClientSecret":"two"}`), 0o600))
		time.Sleep(time.Minute)
		require.Nil(t, decrypts(t, c))
		require.Equal(t, "two", d.forms[len(d.forms)-1].Get("client_secret"))
	})
}
