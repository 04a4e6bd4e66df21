package keyvault_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/stretchr/testify/require"
	"software.sslmate.com/src/go-pkcs12"
)

// identityFields is a good identity file.
func identityFields(t *testing.T) map[string]any {
	t.Helper()
	cert := selfSigned(t, testKey(t), time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	return map[string]any{
		"client_id": "app", "tenant_id": testTenant, "authentication_endpoint": "https://westus2.login.microsoft.com/",
		"client_secret": base64.StdEncoding.EncodeToString(pemOf(t, testKey(t), cert)),
		"not_before":    time.Now().UTC().Format(time.RFC3339), "not_after": nil, "custom_claims": map[string]any{"xms_az_nwperimid": []string{"x"}},
	}
}

func writeIdentity(t *testing.T, path string, fields map[string]any) {
	t.Helper()
	data, err := json.Marshal(fields)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

func newDataPlane(t *testing.T, path string, o keyvault.CredentialOptions) (*keyvault.Credential, error) {
	t.Helper()
	cfg, err := keyvault.ReadConfig(writeFile(t, `{"aadMSIDataPlaneIdentityPath":"`+path+`"}`))
	require.NoError(t, err)
	return keyvault.NewCredential(cfg, o)
}

// Each fault names its field and the file; none shows a value, or panics.
func TestDataPlane_Faults(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	now := time.Now()
	inBase64 := func(data []byte) string { return base64.StdEncoding.EncodeToString(data) }
	locked, err := pkcs12.Modern.Encode(testKey(t), selfSigned(t, testKey(t), now.Add(-time.Hour), now.Add(time.Hour)), nil, "pw")
	require.NoError(t, err)
	const badEndpoint = "authentication_endpoint is not the https URL of a sign-in host"
	for name, tt := range map[string]struct {
		field string
		value any // absent if it is the field's name
		want  string
	}{
		"not https":         {"authentication_endpoint", "http://login.CANARY.example/", badEndpoint},
		"no scheme":         {"authentication_endpoint", "login.microsoftonline.com", badEndpoint},
		"no host":           {"authentication_endpoint", "https:///tenant", badEndpoint},
		"a path":            {"authentication_endpoint", "https://login.microsoftonline.com/CANARY", badEndpoint},
		"a user":            {"authentication_endpoint", "https://u:CANARY@login.microsoftonline.com/", badEndpoint},
		"a query":           {"authentication_endpoint", "https://login.microsoftonline.com/?CANARY", badEndpoint},
		"a fragment":        {"authentication_endpoint", "https://login.microsoftonline.com/#CANARY", badEndpoint},
		"garbage":           {"authentication_endpoint", "https://%zzCANARY", badEndpoint},
		"no time":           {"not_before", "CANARY", "not_before is not a time"},
		"no end":            {"not_after", "CANARY", "not_after is not a time"},
		"over":              {"not_after", "2017-03-01T14:11:00Z", "not_after: the identity has expired at 2017-03-01T14:11:00Z"},
		"no base64":         {"client_secret", "-CANARY-", "client_secret: not base64"},
		"no certificate":    {"client_secret", inBase64([]byte("CANARY")), "client_secret: neither PEM nor"},
		"a password":        {"client_secret", inBase64(locked), "client_secret: the PKCS#12 file in it has a password"},
		"EC":                {"client_secret", inBase64(pemOf(t, ec, selfSigned(t, ec, now.Add(-time.Hour), now.Add(time.Hour)))), "client_secret: the private key is not RSA (EC)"},
		"expired":           {"client_secret", inBase64(pemOf(t, testKey(t), selfSigned(t, testKey(t), now.Add(-2*time.Hour), now.Add(-time.Hour)))), "client_secret: the certificate has expired at"},
		"another type":      {"client_id", 7, "client_id must be text"},
		"another type, too": {"client_secret", []string{"CANARY"}, "client_secret must be text"},
	} {
		t.Run(name, func(t *testing.T) {
			path, fields := filepath.Join(t.TempDir(), "identity"), identityFields(t)
			fields[tt.field] = tt.value
			writeIdentity(t, path, fields)
			_, err := newDataPlane(t, path, keyvault.CredentialOptions{})
			require.ErrorContains(t, err, "aadMSIDataPlaneIdentityPath: "+path+": "+tt.want)
			require.NotContains(t, err.Error(), "CANARY")
		})
	}
	for _, field := range []string{"client_id", "tenant_id", "client_secret", "authentication_endpoint", "not_before"} {
		for what, change := range map[string]func(map[string]any){
			"missing": func(f map[string]any) { delete(f, field) },
			"null":    func(f map[string]any) { f[field] = nil },
			"empty":   func(f map[string]any) { f[field] = "" },
		} {
			path, fields := filepath.Join(t.TempDir(), "identity"), identityFields(t)
			change(fields)
			writeIdentity(t, path, fields)
			_, err := newDataPlane(t, path, keyvault.CredentialOptions{})
			require.ErrorContains(t, err, path+": "+field+" is missing", what)
		}
	}
	for text, want := range map[string]string{
		"":                    "empty file",
		"null":                "client_id is missing",
		"{}":                  "not_before is missing",
		"[]":                  "not a JSON object",
		`"CANARY"`:            "not a JSON object",
		"{\n\"client_id\": C": "line 2, column 14: not valid JSON",
		`{} {"CANARY":1}`:     "line 1, column 4: not valid JSON",
	} {
		path := filepath.Join(t.TempDir(), "identity")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := newDataPlane(t, path, keyvault.CredentialOptions{})
		require.ErrorContains(t, err, path+": ", text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "CANARY")
	}
	_, err = newDataPlane(t, "/no/such/identity", keyvault.CredentialOptions{})
	require.ErrorContains(t, err, "aadMSIDataPlaneIdentityPath: reading /no/such/identity: no such file")
}

// The file's own sign-in host is asked, in the place of the cloud's, with the
// whole chain; the directory knows the certificate's issuer, not the certificate.
func TestSignIn_DataPlane(t *testing.T) {
	for _, host := range []string{"", "eastus.login.microsoft.com", "login.microsoftonline.com"} {
		l := newLab(t, vault.Config{})
		file, _ := identityFile(t, l.srv, vault.IdentityFileOptions{Host: host}, nil)
		path := filepath.Join(t.TempDir(), "identity")
		require.NoError(t, os.WriteFile(path, file, 0o600))
		require.NoError(t, l.kv.Allow("app", vault.PermEncrypt))
		l.signIn(t, map[string]any{"aadMSIDataPlaneIdentityPath": path, "tenantId": "99999999-2222-3333-4444-555555555555"}, keyvault.WorkloadIdentity{})
		require.NoError(t, l.encrypt(t), "the tenant is the file's")
		if host == "" {
			host = "westus2.login.microsoft.com"
		}
		for _, r := range l.srv.Requests() {
			require.Contains(t, []string{l.kv.Host(), host}, r.Host)
			require.NotEqual(t, vault.OpDiscovery, r.Op)
			if r.Op == vault.OpToken {
				require.Equal(t, "https://vault.azure.net", r.Audience)
			}
		}
		require.Empty(t, l.srv.Refused())
	}

	// A vault of another tenant gets nothing.
	l := newLab(t, vault.Config{})
	file, _ := identityFile(t, l.srv, vault.IdentityFileOptions{}, nil)
	path := filepath.Join(t.TempDir(), "identity")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	l.kv.SetTenant("99999999-2222-3333-4444-555555555555")
	l.signIn(t, map[string]any{"aadMSIDataPlaneIdentityPath": path}, keyvault.WorkloadIdentity{})
	e := failure(t, l.encrypt(t))
	require.Equal(t, keyvault.CredentialsRefused, e.Reason)
	require.Contains(t, e.Text, "the vault belongs to another tenant than the credential: check tenant_id in "+path)
	require.Zero(t, l.srv.Calls()["token"])
}

func TestSignIn_DataPlaneRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	synctest.Test(t, func(t *testing.T) {
		writeIdentity(t, path, identityFields(t))
		d := &directory{}
		d.answer = func(_ int, _ url.Values, req *http.Request) (*http.Response, error) {
			return refuseSignIn(req, "AADSTS700027"), nil
		}
		c := signedIn(t, writeFile(t, `{"aadMSIDataPlaneIdentityPath":"`+path+`"}`), d, newWeb(), keyvault.CredentialOptions{})
		e := decrypts(t, c)
		require.Equal(t, keyvault.CredentialsRefused, e.Reason)
		require.Contains(t, e.Text, "westus2.login.microsoft.com refuses the MSI data-plane identity (http 401, AADSTS700027): the identity file that aadMSIDataPlaneIdentityPath names")
	})
}

// An older version of the file is not taken, and that is said once, until the
// one in use has expired: by then an old one is better than none.
func TestSignIn_DataPlaneDoesNotGoBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		put := func(client string, notBefore time.Time, life time.Duration) {
			f := identityFields(t)
			f["client_id"], f["not_before"] = client, notBefore.Format(time.RFC3339)
			f["client_secret"] = base64.StdEncoding.EncodeToString(pemOf(t, testKey(t), selfSigned(t, testKey(t), start.Add(-time.Hour), start.Add(48*time.Hour))))
			f["not_after"] = start.Add(life).Format(time.RFC3339)
			writeIdentity(t, path, f)
		}
		d := &directory{life: time.Minute}
		var used []string
		d.answer = func(_ int, form url.Values, _ *http.Request) (*http.Response, error) {
			payload := strings.Split(form.Get("client_assertion"), ".")
			require.Len(t, payload, 3)
			used = append(used, form.Get("client_id"))
			return nil, nil
		}
		seen := &journal{}
		put("app", start, 12*time.Hour)
		c := signedIn(t, writeFile(t, `{"aadMSIDataPlaneIdentityPath":"`+path+`"}`), d, newWeb(), seen.options(keyvault.CredentialOptions{}))
		require.Nil(t, decrypts(t, c))
		put("app", start.Add(-time.Second), 24*time.Hour)
		for range 3 {
			time.Sleep(time.Hour)
			require.Nil(t, decrypts(t, c))
		}
		warns, infos := seen.take()
		require.Len(t, warns, 1)
		require.Contains(t, warns[0], "not_before, "+start.Add(-time.Second).UTC().Format(time.RFC3339)+", is older than that of the identity in use, "+start.UTC().Format(time.RFC3339))
		require.Empty(t, infos)

		time.Sleep(10 * time.Hour) // past the end of the one in use
		require.Nil(t, decrypts(t, c))
		_, infos = seen.take()
		require.Len(t, infos, 1)
		// Another identity is not an older version of this one.
		put("other", start.Add(-time.Hour), 24*time.Hour)
		time.Sleep(time.Hour)
		require.Nil(t, decrypts(t, c))
		require.Equal(t, "other", used[len(used)-1])
		warns, _ = seen.take()
		require.Empty(t, warns)
	})
}

// A broken file keeps the identity before it for as long as that is good, by
// its certificate or its own word, and not longer.
func TestSignIn_DataPlaneKeptUntilItExpires(t *testing.T) {
	for _, end := range []string{"certificate", "not_after"} {
		path := filepath.Join(t.TempDir(), "identity")
		synctest.Test(t, func(t *testing.T) {
			f := identityFields(t)
			life := map[string]time.Duration{"certificate": 20 * time.Hour, "not_after": 20 * time.Hour, end: 10 * time.Hour}
			f["client_secret"] = base64.StdEncoding.EncodeToString(pemOf(t, testKey(t), selfSigned(t, testKey(t), time.Now().Add(-time.Hour), time.Now().Add(life["certificate"]))))
			f["not_after"] = time.Now().Add(life["not_after"]).Format(time.RFC3339)
			writeIdentity(t, path, f)
			d := &directory{life: time.Minute}
			c := signedIn(t, writeFile(t, `{"aadMSIDataPlaneIdentityPath":"`+path+`"}`), d, newWeb(), keyvault.CredentialOptions{})
			require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
			time.Sleep(9 * time.Hour)
			require.Nil(t, decrypts(t, c))
			sent := len(d.asked())
			time.Sleep(time.Hour + time.Minute)
			e := decrypts(t, c)
			require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
			require.Contains(t, e.Text, "aadMSIDataPlaneIdentityPath: "+path+": line 1, column 1: not valid JSON")
			require.Len(t, d.asked(), sent)
			writeIdentity(t, path, identityFields(t))
			time.Sleep(6 * time.Second)
			require.Nil(t, decrypts(t, c))
		})
	}
}
