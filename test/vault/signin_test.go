package vault_test

import (
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"azure-kms-plugin/test/vault"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/stretchr/testify/require"
)

// openFile takes apart an identity file as its reader does.
func openFile(t *testing.T, data []byte) (file map[string]any, certs []*x509.Certificate, key crypto.PrivateKey) {
	t.Helper()
	require.NoError(t, json.Unmarshal(data, &file))
	secret, err := base64.StdEncoding.DecodeString(file["client_secret"].(string))
	require.NoError(t, err)
	certs, key, err = azidentity.ParseCertificates(secret, nil)
	require.NoError(t, err)
	return file, certs, key
}

func TestIdentityFilesSignInAtTheirOwnHost(t *testing.T) {
	srv := start(t, vault.Config{})
	data, err := srv.IdentityFile("hosted", vault.IdentityFileOptions{})
	require.NoError(t, err)
	file, certs, key := openFile(t, data)
	try := func(certs []*x509.Certificate, key crypto.PrivateKey, chain bool) error {
		opts := clientOptions(srv.Transport())
		opts.Cloud = cloud.Configuration{ActiveDirectoryAuthorityHost: file["authentication_endpoint"].(string)}
		cred, err := azidentity.NewClientCertificateCredential(file["tenant_id"].(string), "hosted", certs, key,
			&azidentity.ClientCertificateCredentialOptions{ClientOptions: opts, DisableInstanceDiscovery: true, SendCertificateChain: chain})
		require.NoError(t, err)
		_, err = cred.GetToken(t.Context(), policy.TokenRequestOptions{Scopes: []string{"https://vault.azure.net/.default"}})
		return err
	}
	require.NoError(t, try(certs, key, true))
	require.Equal(t, 1, srv.Count(vault.Match{Op: vault.OpToken, Host: "westus2.login.microsoft.com", Status: 200}))
	require.ErrorContains(t, try(certs, key, false), "AADSTS700027", "it is not registered, so its chain is needed")

	stranger, strangersKey := selfSigned(t, time.Now().Add(time.Hour))
	require.ErrorContains(t, try([]*x509.Certificate{stranger}, strangersKey, true), "AADSTS700027")
	// The thumbprint must be that of the chain's first certificate.
	mixed := assertionWith(t, stranger, strangersKey, certs[0])
	status, body := askToken(t, srv, &http.Client{Transport: srv.Transport()}, srv.TenantID, url.Values{
		"client_id": {"with-cert"}, "client_secret": nil, "client_assertion": {mixed},
		"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
	})
	require.Equal(t, 400, status, body) // nobody of that name yet
	require.NoError(t, srv.AddPrincipal(vault.Principal{ClientID: "with-cert", Certificates: []*x509.Certificate{stranger}}))
	status, body = askToken(t, srv, &http.Client{Transport: srv.Transport()}, srv.TenantID, url.Values{
		"client_id": {"with-cert"}, "client_secret": nil, "client_assertion": {mixed},
		"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
	})
	require.Equal(t, 401, status)
	require.Contains(t, body["error_description"], "AADSTS50027")

	// Each file has a certificate of its own, and all of them are good.
	data, err = srv.IdentityFile("hosted", vault.IdentityFileOptions{})
	require.NoError(t, err)
	_, again, key2 := openFile(t, data)
	require.NotEqual(t, certs[0].Raw, again[0].Raw)
	require.NoError(t, try(again, key2, true))
	require.NoError(t, try(certs, key, true))
	_, err = srv.IdentityFile("hosted", vault.IdentityFileOptions{Host: "login.example"})
	require.Error(t, err)
}

// assertionWith is assertion with a chain in its header.
func assertionWith(t *testing.T, cert *x509.Certificate, signer *rsa.PrivateKey, chain ...*x509.Certificate) string {
	t.Helper()
	var x5c []string
	for _, c := range chain {
		x5c = append(x5c, base64.StdEncoding.EncodeToString(c.Raw))
	}
	return signed(t, map[string]any{"x5c": x5c}, cert, signer, "https://login.microsoftonline.com/x/", "with-cert", time.Minute)
}

func TestACloudGivesOutItsOwnAudiencesAlone(t *testing.T) {
	srv := start(t, vault.Config{})
	hc := &http.Client{Transport: srv.Transport()}
	domains := map[string][]string{
		"login.microsoftonline.com": {"vault.azure.net", "managedhsm.azure.net"}, "eastus.login.microsoft.com": {"vault.azure.net", "managedhsm.azure.net"},
		"login.microsoftonline.us": {"vault.usgovcloudapi.net", "managedhsm.usgovcloudapi.net"},
		"login.chinacloudapi.cn":   {"vault.azure.cn", "managedhsm.azure.cn"}, "login.partner.microsoftonline.cn": {"vault.azure.cn", "managedhsm.azure.cn"},
	}
	for host := range domains {
		for other, audiences := range domains {
			for _, audience := range audiences {
				res, err := hc.PostForm("https://"+host+"/"+srv.TenantID+"/oauth2/v2.0/token", url.Values{
					"grant_type": {"client_credentials"}, "client_id": {srv.ClientID}, "client_secret": {srv.ClientSecret}, "scope": {"https://" + audience + "/.default"},
				})
				require.NoError(t, err)
				res.Body.Close()
				want := 400
				if domains[host][0] == domains[other][0] {
					want = 200
				}
				require.Equal(t, want, res.StatusCode, "%s at %s", audience, host)
			}
		}
	}
	for _, host := range []string{"login.microsoft.com.example", "a.b.login.microsoft.com", ".login.microsoft.com"} {
		_, err := hc.Get("https://" + host + "/")
		require.Error(t, err, host)
	}
}
