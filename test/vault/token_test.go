package vault_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"azure-kms-plugin/test/vault"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	"github.com/stretchr/testify/require"
)

// tokenFor asks for a token with the default principal's secret.
func tokenFor(t *testing.T, srv *vault.Server, hc *http.Client, resource string) string {
	t.Helper()
	status, body := askToken(t, srv, hc, srv.TenantID, url.Values{"scope": {resource + "/.default"}})
	require.Equal(t, 200, status, body)
	return body["access_token"].(string)
}

func askToken(t *testing.T, srv *vault.Server, hc *http.Client, tenant string, change url.Values) (int, map[string]any) {
	t.Helper()
	form := url.Values{
		"grant_type": {"client_credentials"}, "client_id": {srv.ClientID}, "client_secret": {srv.ClientSecret},
		"scope": {"https://vault.azure.net/.default"},
	}
	for k, v := range change {
		form[k] = v
	}
	res, err := hc.PostForm("https://login.microsoftonline.com/"+tenant+"/oauth2/v2.0/token", form)
	require.NoError(t, err)
	defer res.Body.Close()
	var body map[string]any
	require.NoError(t, json.NewDecoder(res.Body).Decode(&body))
	return res.StatusCode, body
}

func TestTheTokenEndpointRefuses(t *testing.T) {
	srv := start(t, vault.Config{})
	hc := &http.Client{Transport: srv.Transport()}
	for name, tc := range map[string]struct {
		tenant string
		change url.Values
		status int
		name   string
		code   string
	}{
		"wrong secret":       {srv.TenantID, url.Values{"client_secret": {srv.ClientSecret + "x"}}, 401, "invalid_client", "AADSTS7000215:"},
		"no secret":          {srv.TenantID, url.Values{"client_secret": nil}, 401, "invalid_client", "AADSTS7000218:"},
		"unknown app":        {srv.TenantID, url.Values{"client_id": {"msi"}}, 400, "unauthorized_client", "AADSTS700016:"},
		"unknown tenant":     {"nowhere", nil, 400, "invalid_tenant", "AADSTS90002:"},
		"unknown resource":   {srv.TenantID, url.Values{"scope": {"https://example.com/.default"}}, 400, "invalid_resource", "AADSTS500011:"},
		"another grant":      {srv.TenantID, url.Values{"grant_type": {"password"}}, 400, "unsupported_grant_type", "AADSTS70003:"},
		"no client":          {srv.TenantID, url.Values{"client_id": nil}, 400, "invalid_request", "AADSTS900144:"},
		"a broken assertion": {srv.TenantID, url.Values{"client_assertion": {"x"}, "client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"}}, 401, "invalid_client", "AADSTS50027:"},
		"a trailing slash":   {srv.TenantID, url.Values{"scope": {"https://vault.azure.net//.default"}}, 400, "invalid_resource", "AADSTS500011:"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := askToken(t, srv, hc, tc.tenant, tc.change)
			require.Equal(t, tc.status, status)
			require.Equal(t, tc.name, body["error"])
			require.True(t, strings.HasPrefix(body["error_description"].(string), tc.code), body["error_description"])
			require.NotContains(t, body["error_description"], srv.ClientSecret)
		})
	}
	require.Zero(t, srv.TokensIssued())
	// Microsoft's client tells the refusal apart from a fault.
	c := clientOf(t, srv, srv.Vault("kvlab"), srv.Transport(), srv.ClientID, "wrong")
	_, err := c.GetKey(t.Context(), "k1", "", nil)
	var refused *azidentity.AuthenticationFailedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 401, refused.RawResponse.StatusCode)
	require.ErrorContains(t, err, "AADSTS7000215")
}

func TestSecretsArriveExactlyAsWritten(t *testing.T) {
	const secret = `a"b\c+d&e=f%20 ~ü` // what a careless encoder changes
	srv := start(t, vault.Config{ClientSecret: secret})
	v := srv.Vault("kvlab")
	_, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	_, err = client(t, srv, v, srv.Transport()).GetKey(t.Context(), "k1", "", nil)
	require.NoError(t, err)
	status, _ := askToken(t, srv, &http.Client{Transport: srv.Transport()}, srv.TenantID, url.Values{"client_secret": {strings.ReplaceAll(secret, "+", " ")}})
	require.Equal(t, 401, status)
	path, err := srv.AzureJSON(t.TempDir())
	require.NoError(t, err)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var config map[string]string
	require.NoError(t, json.Unmarshal(b, &config))
	require.Equal(t, map[string]string{
		"cloud": "AzurePublicCloud", "tenantId": srv.TenantID, "aadClientId": srv.ClientID, "aadClientSecret": secret,
	}, config)
}

// get asks for a key with a given Authorization header.
func get(t *testing.T, v *vault.Vault, hc *http.Client, authorization string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.URL()+"/keys/k1?api-version=2025-07-01", nil)
	require.NoError(t, err)
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	res, err := hc.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(b)
}

func TestEveryCallNeedsAGoodToken(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	srv := start(t, vault.Config{Now: func() time.Time { return now }, TokenLifetime: time.Minute})
	v, hsm, other := srv.Vault("kvlab"), srv.HSM("hsmlab"), srv.Vault("kvother")
	other.SetTenant("22222222-0000-0000-0000-000000000000")
	for _, x := range []*vault.Vault{v, hsm, other} {
		_, err := x.CreateKey("k1", options())
		require.NoError(t, err)
	}
	hc := &http.Client{Transport: srv.Transport()}
	forVault, forHSM := "Bearer "+tokenFor(t, srv, hc, "https://vault.azure.net"), "Bearer "+tokenFor(t, srv, hc, "https://managedhsm.azure.net")

	const challenge = `Bearer authorization="https://login.microsoftonline.com/11111111-2222-3333-4444-555555555555", resource="https://vault.azure.net"`
	for name, tc := range map[string]struct {
		v             *vault.Vault
		authorization string
		text          string
	}{
		"no token":              {v, "", "AKV10000: Request is missing a Bearer or PoP token."},
		"another scheme":        {v, "Basic eDp5", "AKV10000"},
		"a stranger's token":    {v, "Bearer e30.e30.e30", "AKV10046"},
		"a Managed HSM's token": {v, forHSM, "AKV10022: Invalid audience. Expected https://vault.azure.net, found: https://managedhsm.azure.net."},
		"another tenant's":      {other, forVault, "AKV10032: Invalid issuer. Expected one of https://sts.windows.net/22222222-0000-0000-0000-000000000000/, found https://sts.windows.net/" + srv.TenantID + "/."},
	} {
		t.Run(name, func(t *testing.T) {
			res, body := get(t, tc.v, hc, tc.authorization)
			require.Equal(t, 401, res.StatusCode)
			require.Contains(t, body, tc.text)
			require.Contains(t, body, `"code":"Unauthorized"`)
			require.NotEmpty(t, res.Header.Get("WWW-Authenticate"))
		})
	}
	res, body := get(t, v, hc, "")
	require.Equal(t, challenge, res.Header.Get("WWW-Authenticate"))
	require.Equal(t, "Fri, 02 Jan 2026 03:04:05 GMT", res.Header.Get("Date"))
	require.NotEmpty(t, body)
	res, body = get(t, hsm, hc, "")
	require.Equal(t, 401, res.StatusCode)
	require.Empty(t, body, "a Managed HSM's challenge has no body")
	require.Contains(t, res.Header.Get("WWW-Authenticate"), `resource="https://managedhsm.azure.net"`)
	res, body = get(t, hsm, hc, forVault)
	require.Equal(t, 401, res.StatusCode)
	require.Empty(t, body)

	res, _ = get(t, v, hc, forVault)
	require.Equal(t, 200, res.StatusCode)
	srv.AdvanceClock(time.Minute)
	res, body = get(t, v, hc, forVault)
	require.Equal(t, 401, res.StatusCode, "tokens expire")
	require.Contains(t, body, "expired")
	fresh := "Bearer " + tokenFor(t, srv, hc, "https://vault.azure.net")
	res, _ = get(t, v, hc, fresh)
	require.Equal(t, 200, res.StatusCode)
	srv.RevokeTokensOf("somebody-else")
	res, _ = get(t, v, hc, fresh)
	require.Equal(t, 200, res.StatusCode)
	srv.RevokeTokensOf(srv.ClientID)
	res, _ = get(t, v, hc, fresh)
	require.Equal(t, 401, res.StatusCode, "tokens can be revoked")
	require.Equal(t, 3, srv.Calls()["challenge"], "every call without a token is a challenge, and only that")
}

// selfSigned makes a certificate of the kind that an app registers.
func selfSigned(t *testing.T, notAfter time.Time) (*x509.Certificate, *rsa.PrivateKey) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert, key
}

// assertion signs what Microsoft's client signs, with RS256, naming cert.
func assertion(t *testing.T, cert *x509.Certificate, signer *rsa.PrivateKey, aud, sub string, exp time.Duration) string {
	t.Helper()
	return signed(t, map[string]any{}, cert, signer, aud, sub, exp)
}

// signed is an assertion with more in its header.
func signed(t *testing.T, header map[string]any, cert *x509.Certificate, signer *rsa.PrivateKey, aud, sub string, exp time.Duration) string {
	t.Helper()
	part := func(v any) string {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	thumbprint := sha1.Sum(cert.Raw)
	header["alg"], header["x5t"] = "RS256", base64.RawURLEncoding.EncodeToString(thumbprint[:])
	text := part(header) + "." + part(map[string]any{
		"aud": aud, "iss": "with-cert", "sub": sub, "nbf": time.Now().Add(-2 * time.Hour).Unix(), "exp": time.Now().Add(exp).Unix(),
	})
	digest := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, signer, crypto.SHA256, digest[:])
	require.NoError(t, err)
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func TestAssertionsInsteadOfASecret(t *testing.T) {
	srv := start(t, vault.Config{})
	v := srv.Vault("kvlab")
	_, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	rt := srv.Transport()
	opts := clientOptions(rt)
	try := func(cred azcore.TokenCredential, err error) error {
		t.Helper()
		require.NoError(t, err)
		_, err = cred.GetToken(t.Context(), policy.TokenRequestOptions{Scopes: []string{"https://vault.azure.net/.default"}})
		return err
	}
	cert, key := selfSigned(t, time.Now().Add(time.Hour))
	stranger, strangersKey := selfSigned(t, time.Now().Add(time.Hour))
	require.NoError(t, srv.AddPrincipal(vault.Principal{ClientID: "with-cert", Certificates: []*x509.Certificate{cert}}))
	withCert := func(c *x509.Certificate, k *rsa.PrivateKey) error {
		return try(azidentity.NewClientCertificateCredential(srv.TenantID, "with-cert", []*x509.Certificate{c}, k,
			&azidentity.ClientCertificateCredentialOptions{ClientOptions: opts}))
	}
	require.NoError(t, withCert(cert, key))
	require.ErrorContains(t, withCert(stranger, strangersKey), "AADSTS700027")
	hc := &http.Client{Transport: rt}
	byHand := func(signer *rsa.PrivateKey, aud, sub string, exp time.Duration) string {
		status, body := askToken(t, srv, hc, srv.TenantID, url.Values{
			"client_id": {"with-cert"}, "client_secret": nil, "client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
			"client_assertion": {assertion(t, cert, signer, aud, sub, exp)},
		})
		if status == 200 {
			return ""
		}
		text, _, _ := strings.Cut(body["error_description"].(string), ":")
		return text
	}
	endpoint := "https://login.microsoftonline.com/" + srv.TenantID + "/oauth2/v2.0/token"
	require.Empty(t, byHand(key, endpoint, "with-cert", time.Minute))
	require.Equal(t, "AADSTS700027", byHand(strangersKey, endpoint, "with-cert", time.Minute), "another key")
	require.Equal(t, "AADSTS700024", byHand(key, endpoint, "with-cert", -time.Hour), "out of date")
	require.Equal(t, "AADSTS700023", byHand(key, "https://login.microsoftonline.com/elsewhere/", "with-cert", time.Minute), "for another tenant")
	require.Equal(t, "AADSTS700021", byHand(key, endpoint, "with-another", time.Minute), "for another app")

	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, srv.AddPrincipal(vault.Principal{ClientID: "federated", Assertions: []string{"j1.a.b"}}))
	federated := func(assertion string) error {
		require.NoError(t, os.WriteFile(file, []byte(assertion), 0o600))
		return try(azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{
			ClientOptions: opts, ClientID: "federated", TenantID: srv.TenantID, TokenFilePath: file,
		}))
	}
	require.NoError(t, federated("j1.a.b"))
	require.NoError(t, srv.SetAssertions("federated", "j2.a.b"))
	require.Error(t, federated("j1.a.b"))
	require.NoError(t, federated("j2.a.b"))
	require.Error(t, srv.SetAssertions("nobody"))
	require.NoError(t, srv.SetSecrets("federated", "now-a-secret"))
	require.NoError(t, try(azidentity.NewClientSecretCredential(srv.TenantID, "federated", "now-a-secret",
		&azidentity.ClientSecretCredentialOptions{ClientOptions: opts})))
}

func TestManagedIdentitiesFromTheMetadataService(t *testing.T) {
	srv := start(t, vault.Config{})
	v := srv.Vault("kvlab")
	_, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	// Microsoft's client keeps the tokens of managed identities for the whole process.
	one, two, three := "mi-1-"+rand.Text(), "mi-2-"+rand.Text(), "mi-3-"+rand.Text()
	resource := "/subscriptions/s/userAssignedIdentities/" + one
	srv.SetIdentities(
		vault.Identity{ClientID: one, ResourceID: resource},
		vault.Identity{ClientID: two, ResourceID: "/subscriptions/s/userAssignedIdentities/two"},
	)
	require.NoError(t, v.Allow(one, vault.PermGet))
	opts := clientOptions(srv.Transport())
	use := func(id azidentity.ManagedIDKind) error {
		cred, err := azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{ClientOptions: opts, ID: id})
		require.NoError(t, err)
		c, err := azkeys.NewClient(v.URL(), cred, &azkeys.ClientOptions{ClientOptions: opts})
		require.NoError(t, err)
		_, err = c.GetKey(t.Context(), "k1", "", nil)
		return err
	}
	require.NoError(t, use(azidentity.ClientID(one)))
	require.NoError(t, use(azidentity.ResourceID(resource)))
	require.Equal(t, 403, refusal(t, use(azidentity.ClientID(two))).StatusCode, "it has no permission here")
	require.ErrorContains(t, use(azidentity.ClientID(three)), "Identity not found")
	require.ErrorContains(t, use(nil), "Multiple user assigned identities exist")
	require.Equal(t, 5, srv.Calls()["imds"])
	require.Zero(t, srv.Calls()["token"])
	var seen []string
	for _, r := range srv.Requests() {
		if r.Op == vault.OpIMDS {
			require.Equal(t, "https://vault.azure.net", r.Audience)
			seen = append(seen, r.Identity)
		}
	}
	require.Equal(t, []string{
		"client_id=" + one, "msi_res_id=" + resource, "client_id=" + two, "client_id=" + three, "",
	}, seen)

	// Without the header that keeps browsers out, and by the proxy, as curl would.
	hc := &http.Client{Transport: proxied(t, srv)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https://vault.azure.net&client_id="+one, nil)
	require.NoError(t, err)
	res, err := hc.Do(req)
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, 400, res.StatusCode)
	req.Header.Set("Metadata", "true")
	res, err = hc.Do(req)
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, 200, res.StatusCode)
}

func TestManagedIdentityInTheStyleOfAppService(t *testing.T) {
	srv := start(t, vault.Config{})
	id := "app-service-" + rand.Text()
	srv.SetIdentities(vault.Identity{ClientID: id})
	for _, env := range srv.IdentityEnv() {
		name, value, _ := strings.Cut(env, "=")
		t.Setenv(name, value)
	}
	cred, err := azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{ID: azidentity.ClientID(id)})
	require.NoError(t, err)
	tok, err := cred.GetToken(context.Background(), policy.TokenRequestOptions{Scopes: []string{"https://vault.azure.net/.default"}})
	require.NoError(t, err)
	require.NotEmpty(t, tok.Token)
	require.Equal(t, map[string]int{"identity": 1}, srv.Calls())
	t.Setenv("IDENTITY_HEADER", "wrong")
	cred, err = azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{ID: azidentity.ClientID("other-" + id), ClientOptions: clientOptions(http.DefaultTransport)})
	require.NoError(t, err)
	_, err = cred.GetToken(context.Background(), policy.TokenRequestOptions{Scopes: []string{"https://vault.azure.net/.default"}})
	require.Error(t, err)
}
