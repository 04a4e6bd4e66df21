package keyvault_test

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/stretchr/testify/require"
	"software.sslmate.com/src/go-pkcs12"
)

// A journal collects what a credential reports.
type journal struct {
	mu    sync.Mutex
	warns []string
	infos []string
}

func (j *journal) options(o keyvault.CredentialOptions) keyvault.CredentialOptions {
	add := func(to *[]string) func(string) {
		return func(text string) {
			j.mu.Lock()
			defer j.mu.Unlock()
			*to = append(*to, text)
		}
	}
	o.Warn, o.Info = add(&j.warns), add(&j.infos)
	return o
}

// take returns what came since the last time.
func (j *journal) take() (warns, infos []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	warns, infos = j.warns, j.infos
	j.warns, j.infos = nil, nil
	return warns, infos
}

// projected writes files as the kubelet does: into a new directory, to which
// a symbolic link is then moved.
type projected struct {
	dir string
	n   int
}

func (p *projected) path(name string) string { return filepath.Join(p.dir, "..data", name) }

func (p *projected) put(t *testing.T, name string, data []byte) {
	t.Helper()
	p.n++
	generation := fmt.Sprintf("..%d", p.n)
	require.NoError(t, os.Mkdir(filepath.Join(p.dir, generation), 0o700))
	if data != nil {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, generation, name), data, 0o600))
	}
	require.NoError(t, os.Symlink(generation, filepath.Join(p.dir, "..new")))
	require.NoError(t, os.Rename(filepath.Join(p.dir, "..new"), filepath.Join(p.dir, "..data")))
}

// A rotated is a file that signs in, in versions: next makes another version,
// which alone is good from then on.
type rotated struct {
	azureJSON bool // it is azure.json itself
	next      func(t *testing.T, l *lab) []byte
	config    func(l *lab, path string) map[string]any
	secrets   func(data []byte) []string // what no text may show
}

// rotatedFiles has every kind of file that signs in; the principal is "app".
func rotatedFiles(t *testing.T) map[string]rotated {
	n, issued := 0, time.Now().Add(-12*time.Hour)
	cert := func(t *testing.T) *x509.Certificate {
		n++
		return selfSigned(t, testKey(t), issued.Add(time.Duration(n)*time.Minute), time.Now().Add(time.Hour))
	}
	pfx := func(e *pkcs12.Encoder, password string) rotated {
		return rotated{
			next: func(t *testing.T, l *lab) []byte {
				c := cert(t)
				require.NoError(t, l.srv.AddPrincipal(vault.Principal{ClientID: "app", Certificates: []*x509.Certificate{c}}))
				data, err := e.Encode(testKey(t), c, nil, password)
				require.NoError(t, err)
				return data
			},
			config: func(l *lab, path string) map[string]any {
				return map[string]any{"tenantId": l.srv.TenantID, "aadClientId": "app", "aadClientCertPath": path, "aadClientCertPassword": password}
			},
		}
	}
	dataPlane := func(secret func(t *testing.T, pem []byte) []byte) rotated {
		return rotated{
			next: func(t *testing.T, l *lab) []byte {
				n++
				file, c := identityFile(t, l.srv, vault.IdentityFileOptions{NotBefore: issued.Add(time.Duration(n) * time.Minute)}, func(f map[string]any) {
					data, err := base64.StdEncoding.DecodeString(f["client_secret"].(string))
					require.NoError(t, err)
					f["client_secret"] = base64.StdEncoding.EncodeToString(secret(t, data))
				})
				require.NoError(t, l.srv.AddPrincipal(vault.Principal{ClientID: "app", Certificates: []*x509.Certificate{c}}))
				return file
			},
			config: func(_ *lab, path string) map[string]any { return map[string]any{"aadMSIDataPlaneIdentityPath": path} },
			secrets: func(data []byte) []string {
				var f map[string]any
				_ = json.Unmarshal(data, &f)
				s, _ := f["client_secret"].(string)
				return []string{s[:40], s[len(s)-40:]}
			},
		}
	}
	secret := func(format string) rotated {
		return rotated{azureJSON: true, next: func(t *testing.T, l *lab) []byte {
			n++
			s := fmt.Sprintf("SECRETCANARY%d", n)
			require.NoError(t, l.srv.AddPrincipal(vault.Principal{ClientID: "app", Secrets: []string{s}}))
			return fmt.Appendf(nil, format, l.srv.TenantID, s)
		}}
	}
	return map[string]rotated{
		"secret, JSON": secret(`{"tenantId":%q,"aadClientId":"app","aadClientSecret":%q}`),
		"secret, YAML": secret("{tenantId: %s, aadClientId: app, aadClientSecret: %s}\n"),
		"PEM": {
			next: func(t *testing.T, l *lab) []byte {
				c := cert(t)
				require.NoError(t, l.srv.AddPrincipal(vault.Principal{ClientID: "app", Certificates: []*x509.Certificate{c}}))
				return pemOf(t, testKey(t), c)
			},
			config: func(l *lab, path string) map[string]any {
				return map[string]any{"tenantId": l.srv.TenantID, "aadClientId": "app", "aadClientCertPath": path}
			},
		},
		"PKCS#12, 3DES and SHA-1":               pfx(pkcs12.LegacyDES, "pw"),
		"PKCS#12, AES-256 and SHA-256":          pfx(pkcs12.Modern, "pw"),
		"PKCS#12, no password":                  pfx(pkcs12.Modern, ""),
		"identity file, PEM":                    dataPlane(func(_ *testing.T, pem []byte) []byte { return pem }),
		"identity file, PKCS#12 AES-256/SHA256": dataPlane(asPKCS12),
		"federated token": {
			next: func(t *testing.T, l *lab) []byte {
				n++
				token := federated(fmt.Sprintf("TOKENCANARY%d", n))
				require.NoError(t, l.srv.AddPrincipal(vault.Principal{ClientID: "app", Assertions: []string{token}}))
				return []byte(token + "\n")
			},
			secrets: func(data []byte) []string { return strings.Split(strings.TrimSpace(string(data)), ".") },
			config:  func(*lab, string) map[string]any { return map[string]any{"useWorkloadIdentityExtension": true} },
		},
	}
}

// identityFile makes an identity file of "app" and its certificate.
func identityFile(t *testing.T, srv *vault.Server, o vault.IdentityFileOptions, change func(map[string]any)) ([]byte, *x509.Certificate) {
	t.Helper()
	data, err := srv.IdentityFile("app", o)
	require.NoError(t, err)
	var f map[string]any
	require.NoError(t, json.Unmarshal(data, &f))
	secret, err := base64.StdEncoding.DecodeString(f["client_secret"].(string))
	require.NoError(t, err)
	_, rest := pem.Decode(secret)
	block, _ := pem.Decode(rest)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	if change != nil {
		change(f)
	}
	data, err = json.Marshal(f)
	require.NoError(t, err)
	return data, cert
}

// asPKCS12 makes PKCS#12 without a password of a key and certificate in PEM.
func asPKCS12(t *testing.T, data []byte) []byte {
	t.Helper()
	block, rest := pem.Decode(data)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	block, _ = pem.Decode(rest)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	out, err := pkcs12.Modern2023.Encode(key.(*rsa.PrivateKey), cert, nil, "")
	require.NoError(t, err)
	return out
}

// Cases A03 and A04. Whatever signs in is exchanged on disk, in every way that
// files are exchanged, and used for the next token. While the file is of no use
// the old one goes on, and that is said once.
func TestSignIn_RotatedFiles(t *testing.T) {
	for name, r := range rotatedFiles(t) {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, vault.Config{})
			vol := &projected{dir: t.TempDir()}
			const file = "credential"
			data := r.next(t, l)
			vol.put(t, file, data)
			require.NoError(t, l.kv.Allow("app", vault.PermEncrypt))
			path, seen := vol.path(file), &journal{}
			config := path
			if !r.azureJSON {
				text, err := json.Marshal(r.config(l, path))
				require.NoError(t, err)
				config = writeFile(t, string(text))
			}
			cfg, err := keyvault.ReadConfig(config)
			require.NoError(t, err)
			cred, err := keyvault.NewCredential(cfg, seen.options(keyvault.CredentialOptions{
				Transport:        l.srv.Transport(),
				WorkloadIdentity: keyvault.WorkloadIdentity{ClientID: "app", TenantID: l.srv.TenantID, TokenFile: path},
			}))
			require.NoError(t, err)
			l.c, l.seen = newClient(t, l.srv.Transport(), cred)
			works := func(what string) {
				t.Helper()
				l.srv.RevokeTokens()
				require.NoError(t, l.encrypt(t), what)
			}
			works("the first")

			// A link that is moved, a file renamed over the old one, and one that
			// is written where it lies.
			data = r.next(t, l)
			vol.put(t, file, data)
			works("link")
			data = r.next(t, l)
			require.NoError(t, os.WriteFile(path+".new", data, 0o600))
			require.NoError(t, os.Rename(path+".new", path))
			works("rename")
			data = r.next(t, l)
			require.NoError(t, os.WriteFile(path, data, 0o600))
			works("in place")
			warns, infos := seen.take()
			require.Empty(t, warns)
			require.Empty(t, infos)

			hidden := []string{"CANARY"}
			if r.secrets != nil {
				hidden = append(hidden, r.secrets(data)...)
			}
			damages := map[string]func(){
				"empty":     func() { vol.put(t, file, []byte{}) },
				"gone":      func() { vol.put(t, file, nil) },
				"truncated": func() { vol.put(t, file, data[:len(data)/2]) },
				"huge":      func() { vol.put(t, file, []byte(strings.Repeat("x", 2<<20))) },
			}
			if os.Geteuid() != 0 { // root reads everything; the program's own test becomes somebody else
				damages["unreadable"] = func() { require.NoError(t, os.Chmod(path, 0)) }
			}
			for what, damage := range damages {
				damage()
				works(what)
				works(what + ", again")
				warns, infos := seen.take()
				require.Len(t, warns, 1, what)
				require.Contains(t, warns[0], path, what)
				require.Contains(t, warns[0], "what was read before is still used", what)
				require.NotContains(t, warns[0], "\n")
				require.Empty(t, infos, what)
				for _, secret := range hidden {
					require.NotContains(t, warns[0], secret, what)
				}
				data = r.next(t, l)
				vol.put(t, file, data)
				works("after " + what)
				warns, infos = seen.take()
				require.Empty(t, warns, what)
				require.Len(t, infos, 1, what)
			}
		})
	}
}
