package keyvault_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
	"software.sslmate.com/src/go-pkcs12"
)

// A pairOfFiles is a file that signs in and its next version.
type pairOfFiles struct {
	config   func(path string) string // azure.json that names the file; nil if it is that itself
	old, new []byte
}

// pairsOfFiles has every kind of file and, of azure.json in YAML, every field
// that may be the last one.
func pairsOfFiles(t *testing.T) map[string]pairOfFiles {
	issuer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	var leafs, chains, pfx, identities, sealed [2][]byte
	key := testKey(t)
	keyPEM := pemOf(t, key)
	for i := range leafs {
		age := time.Duration(2-i) * time.Minute
		cert := selfSigned(t, key, time.Now().Add(-time.Hour-age), time.Now().Add(time.Hour))
		leafs[i] = pemOf(t, nil, cert)
		chains[i] = pemOf(t, key, cert, selfSigned(t, issuer, time.Now().Add(-time.Hour-age), time.Now().Add(time.Hour)))
		pfx[i], err = pkcs12.Modern.Encode(key, cert, nil, "pw")
		require.NoError(t, err)
		identity := func(secret []byte) []byte {
			f := identityFields(t)
			f["client_secret"] = base64.StdEncoding.EncodeToString(secret)
			f["not_before"] = time.Now().UTC().Add(-age).Format(time.RFC3339)
			data, err := json.Marshal(f)
			require.NoError(t, err)
			return append(data, '\n')
		}
		identities[i], sealed[i] = identity(chains[i]), identity(asPKCS12(t, pemOf(t, key, cert)))
	}
	text := func(format string, old, next any) pairOfFiles {
		return pairOfFiles{old: fmt.Appendf(nil, format, old), new: fmt.Appendf(nil, format, next)}
	}
	certificate := func(files [2][]byte) pairOfFiles {
		return pairOfFiles{func(path string) string {
			return `{"tenantId":"` + testTenant + `","aadClientId":"app","aadClientCertPath":"` + path + `","aadClientCertPassword":"pw"}`
		}, files[0], files[1]}
	}
	dataPlane := func(files [2][]byte) pairOfFiles {
		return pairOfFiles{func(path string) string { return `{"aadMSIDataPlaneIdentityPath":"` + path + `"}` }, files[0], files[1]}
	}
	files := t.TempDir()
	for name, data := range map[string][]byte{"old.pfx": pfx[0], "new.pfx": pfx[1]} {
		require.NoError(t, os.WriteFile(filepath.Join(files, name), data, 0o600))
	}
	return map[string]pairOfFiles{
		"JSON":                     text(`{"tenantId":"`+testTenant+`","aadClientId":"app","aadClientSecret":%q}`+"\n", "old secret", "another secret"),
		"YAML, flow":               text("{tenantId: "+testTenant+", aadClientId: app, aadClientSecret: %s}\n", "one-secret", "two-secret"),
		"YAML, secret last":        text("tenantId: "+testTenant+"\naadClientId: app\naadClientSecret: %s\n", "one-secret", "two-secret"),
		"YAML, quoted secret last": text("tenantId: "+testTenant+"\naadClientId: app\naadClientSecret: %q\n", "one-secret", "two-secret"),
		"YAML, tenant last":        text("aadClientSecret: s\naadClientId: app\ntenantId: %s\n", testTenant, strings.ReplaceAll(testTenant, "1", "2")),
		"YAML, application last":   text("aadClientSecret: s\ntenantId: "+testTenant+"\naadClientId: %s\n", "old-app", "the-new-app"),
		"YAML, password last":      text("tenantId: "+testTenant+"\naadClientId: app\naadClientCertPath: "+files+"/%s.pfx\naadClientCertPassword: pw\n", "old", "new"),
		"YAML, identity last": text("useManagedIdentityExtension: true\nuserAssignedIdentityID: %s\n",
			testTenant, strings.ReplaceAll(testTenant, "1", "2")),
		"YAML, resource last": text("useManagedIdentityExtension: true\nuserAssignedIdentityID: /subscriptions/s/resourceGroups/r/providers/Microsoft.ManagedIdentity/userAssignedIdentities/%s\n",
			"one", "three"),
		"PEM, key first":          certificate([2][]byte{append(keyPEM[:len(keyPEM):len(keyPEM)], leafs[0]...), append(keyPEM[:len(keyPEM):len(keyPEM)], leafs[1]...)}),
		"PEM, key last":           certificate([2][]byte{append(leafs[0], keyPEM...), append(leafs[1], keyPEM...)}),
		"PEM, with its issuer":    certificate(chains),
		"PKCS#12":                 certificate(pfx),
		"identity file, PEM":      dataPlane(identities),
		"identity file, PKCS#12":  dataPlane(sealed),
		"federated token":         {func(string) string { return `{"useWorkloadIdentityExtension":true}` }, []byte(federated("the old one") + "\n"), []byte(federated("the new one, longer") + "\n")},
		"federated token, no end": {func(string) string { return `{"useWorkloadIdentityExtension":true}` }, []byte(federated("old")), []byte(federated("new"))},
	}
}

// proof is what a token request proves who asks with, and where.
func proof(form url.Values, req *http.Request) string {
	assertion := form.Get("client_assertion")
	header, _ := base64.RawURLEncoding.DecodeString(strings.Split(assertion, ".")[0])
	var signed struct{ X5c []string }
	if json.Unmarshal(header, &signed) == nil && signed.X5c != nil {
		assertion = strings.Join(signed.X5c, " ")
	}
	return strings.Join([]string{req.URL.Host, req.URL.Path, form.Get("client_id"), form.Get("msi_res_id"), form.Get("client_secret"), assertion}, "|")
}

// moments are how much of a file is there when it is read: any number of bytes of
// a short one, and of a long one those around its marks and its end, and some.
func moments(data []byte) []int {
	var all []int
	for n := range data {
		near := data[max(0, n-2):min(n+2, len(data))]
		if len(data) < 1000 || n > len(data)-20 || n%61 == 0 || bytes.ContainsAny(near, `"-`) {
			all = append(all, n)
		}
	}
	return all
}

// While a file is written where it lies, to an empty file or over the old
// bytes, no moment of it ends signing in: the old credential is used for as long
// as the sign-in host takes it. The host is asked twice for a token at most.
func TestSignIn_HalfWrittenFiles(t *testing.T) {
	for name, files := range pairsOfFiles(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			put := func(data []byte) { require.NoError(t, os.WriteFile(path, data, 0o600)) }
			put(files.old)
			config := path
			if files.config != nil {
				config = writeFile(t, files.config(path))
			}
			cfg, err := keyvault.ReadConfig(config)
			require.NoError(t, err)
			var taken []string // proofs; all are until there are two
			asked, last := 0, ""
			d := &directory{answer: func(_ int, form url.Values, req *http.Request) (*http.Response, error) {
				asked++
				last = proof(form, req)
				switch {
				case slices.Contains(taken, last):
					return nil, nil
				case len(taken) < 2:
					taken = append(taken, last)
					return nil, nil
				case req.Method == http.MethodGet:
					return metadataError(req, 400, "Identity not found"), nil
				}
				return refuseSignIn(req, "AADSTS50027"), nil
			}}
			var cred *keyvault.Credential
			fetch := func(what string, n int) {
				t.Helper()
				asked = 0
				_, err := cred.Token(t.Context(), keyvault.TokenRequest{Scope: "https://vault.azure.net/.default"})
				require.NoError(t, err, "%s: %d bytes are there", what, n)
				require.LessOrEqual(t, asked, 2, "%s: %d bytes are there", what, n)
			}
			begin := func(data []byte) {
				put(data)
				cred, err = keyvault.NewCredential(cfg, keyvault.CredentialOptions{
					Transport:        d,
					WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: testTenant, TokenFile: path},
				})
				require.NoError(t, err)
				fetch("whole", len(data))
			}
			begin(files.old)
			begin(files.old)
			require.Len(t, taken, 1)
			put(files.new)
			fetch("new", len(files.new))
			require.Len(t, taken, 2)
			for _, what := range []string{"over the old", "to an empty file"} {
				begin(files.old)
				for _, n := range moments(files.new) {
					data := files.new[:n:n]
					if what == "over the old" && n < len(files.old) {
						data = append(data, files.old[n:]...)
					}
					put(data)
					fetch(what, n)
				}
				put(files.new)
				fetch(what, len(files.new))
				require.Equal(t, taken[1], last)
			}
		})
	}
}
