package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/vault"
)

// A volume holds files as the kubelet projects them: "..data" is a symbolic link
// to a directory that is another one after each change.
type volume struct {
	dir string
	n   int
}

func (v *volume) path(name string) string { return filepath.Join(v.dir, "..data", name) }

func (v *volume) put(t *testing.T, name string, data []byte) {
	t.Helper()
	v.n++
	generation := fmt.Sprintf("..%d", v.n)
	require.NoError(t, os.Mkdir(filepath.Join(v.dir, generation), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(v.dir, generation, name), data, 0o600))
	require.NoError(t, os.Symlink(generation, filepath.Join(v.dir, "..new")))
	require.NoError(t, os.Rename(filepath.Join(v.dir, "..new"), filepath.Join(v.dir, "..data")))
}

func encode(t *testing.T, fields map[string]any) []byte {
	t.Helper()
	data, err := json.Marshal(fields)
	require.NoError(t, err)
	return data
}

// A renewal is a way to sign in whose file changes while the program runs. The
// principal is "app"; next makes a version that alone is good from then on.
type renewal struct {
	next   func(t *testing.T, srv *vault.Server) []byte
	config func(srv *vault.Server, path string) map[string]any // azure.json; nil if that is what changes
}

func renewals() map[string]renewal {
	n := 0
	return map[string]renewal{
		"secret in azure.json": {
			next: func(t *testing.T, srv *vault.Server) []byte {
				n++
				secret := fmt.Sprintf("SECRETCANARY%d", n)
				require.NoError(t, srv.AddPrincipal(vault.Principal{ClientID: "app", Secrets: []string{secret}}))
				return encode(t, map[string]any{"tenantId": srv.TenantID, "aadClientId": "app", "aadClientSecret": secret})
			},
		},
		"certificate": {
			next: func(t *testing.T, srv *vault.Server) []byte {
				cert, data := newCertificate(t)
				require.NoError(t, srv.AddPrincipal(vault.Principal{ClientID: "app", Certificates: []*x509.Certificate{cert}}))
				return data
			},
			config: func(srv *vault.Server, path string) map[string]any {
				return map[string]any{"tenantId": srv.TenantID, "aadClientId": "app", "aadClientCertPath": path}
			},
		},
		"federated token": {
			next: func(t *testing.T, srv *vault.Server) []byte {
				n++
				token := fmt.Sprintf("e30.e30.TOKENCANARY%04d", n)
				require.NoError(t, srv.AddPrincipal(vault.Principal{ClientID: "app", Assertions: []string{token}}))
				return []byte(token + "\n")
			},
			config: func(*vault.Server, string) map[string]any {
				return map[string]any{"useWorkloadIdentityExtension": true}
			},
		},
		"identity file": {
			next: func(t *testing.T, srv *vault.Server) []byte {
				n++
				data, err := srv.IdentityFile("app", vault.IdentityFileOptions{NotBefore: time.Now().Add(-time.Hour + time.Duration(n)*time.Second)})
				require.NoError(t, err)
				return data
			},
			config: func(_ *vault.Server, path string) map[string]any {
				return map[string]any{"aadMSIDataPlaneIdentityPath": path}
			},
		},
	}
}

func newCertificate(t *testing.T) (*x509.Certificate, []byte) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "app"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert, append(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
}

// Cases A03 and A04, through everything: what signs in is exchanged on disk, is
// empty or half there for a while, and the same process goes on.
func TestServe_RotatedSignIn(t *testing.T) {
	for name, r := range renewals() {
		t.Run(name, func(t *testing.T) {
			srv, v, version := newVault(t, vault.Config{})
			dir := shortDir(t)
			vol := &volume{dir: filepath.Join(dir, "v")}
			require.NoError(t, os.Mkdir(vol.dir, 0o755))
			data := r.next(t, srv)
			vol.put(t, "file", data)
			require.NoError(t, v.Allow("app", vault.PermEncrypt, vault.PermDecrypt))
			config := vol.path("file")
			if r.config != nil {
				config = filepath.Join(dir, "azure.json")
				require.NoError(t, os.WriteFile(config, encode(t, r.config(srv, vol.path("file"))), 0o600))
			}
			env := append(srv.Env(), "AZURE_CLIENT_ID=app", "AZURE_TENANT_ID="+srv.TenantID, "AZURE_FEDERATED_TOKEN_FILE="+vol.path("file"))
			p := prepare(t, dir, env, "--key-version="+version, "--config-file-path="+config).start(t).serving(t)
			l := &lab{process: p, srv: srv, vault: v, version: version}
			works := func() {
				t.Helper()
				srv.RevokeTokens()
				l.roundTrip(t)
			}
			works()
			for i, damage := range [][]byte{{}, data[:len(data)/2]} {
				vol.put(t, "file", damage)
				works()
				works()
				require.Equal(t, i+1, strings.Count(l.stderr.String(), "what was read before is still used"), "it is said once")
				vol.put(t, "file", r.next(t, srv))
				works()
				require.Equal(t, i+1, strings.Count(l.stderr.String(), "signing in: azure.json and the files that it names are good again"))
			}
			vol.put(t, "file", r.next(t, srv))
			works()
			require.NotContains(t, l.stderr.String(), "CANARY")
			require.NotContains(t, l.stderr.String(), "key cannot be used now")
		})
	}
}

// A file whose mode is wrong for a while, as seen by the user of the image.
func TestServe_ConfigUnreadableForAWhile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	const uid = 65532
	srv, v, version := newVault(t, vault.Config{})
	dir := shortDir(t)
	require.NoError(t, os.Chown(dir, uid, uid))
	config, err := srv.AzureJSON(dir)
	require.NoError(t, err)
	require.NoError(t, os.Chown(config, uid, uid))
	ca, err := os.ReadFile(srv.CAFile())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o644))
	// The test binary lies in a directory that only its owner may enter.
	exe := filepath.Join(dir, "program")
	data, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(exe, data, 0o755))
	p := prepare(t, dir, append(srv.Env(), "SSL_CERT_FILE="), "--key-version="+version, "--ca-file="+filepath.Join(dir, "ca.pem"))
	p.cmd.Path, p.cmd.Dir = exe, dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	l := &lab{process: p.start(t).serving(t), srv: srv, vault: v, version: version}
	l.roundTrip(t)

	require.NoError(t, os.Chown(config, 0, 0))
	for range 2 {
		srv.RevokeTokens()
		l.roundTrip(t)
	}
	require.Equal(t, 1, strings.Count(l.stderr.String(), config+" may not be read by uid 65532, gid 65532: its mode is 0600 and it belongs to uid 0, gid 0"), l.stderr.String())
	require.NoError(t, srv.SetSecrets(srv.ClientID, "another"))
	require.NoError(t, os.WriteFile(config, encode(t, map[string]any{"tenantId": srv.TenantID, "aadClientId": srv.ClientID, "aadClientSecret": "another"}), 0o600))
	require.NoError(t, os.Chown(config, uid, uid))
	srv.RevokeTokens()
	l.roundTrip(t)
	require.Contains(t, l.stderr.String(), "good again")
}

// A secret that was taken back before the new one was written: refused, then
// mended without a restart.
func TestServe_SecretMendedAfterARefusal(t *testing.T) {
	l := startLab(t, nil, nil)
	e := l.encrypt(t, []byte(seed))
	require.NoError(t, l.srv.SetSecrets(l.srv.ClientID, "another"))
	l.srv.RevokeTokens()
	_, err := l.client(t).Decrypt(in3s(t), decryptOf(e))
	require.ErrorContains(t, err, "CredentialsRefused: ")
	config := filepath.Join(l.dir, "azure.json")
	require.NoError(t, os.WriteFile(config+".new", encode(t, map[string]any{"tenantId": l.srv.TenantID, "aadClientId": l.srv.ClientID, "aadClientSecret": "another"}), 0o600))
	require.NoError(t, os.Rename(config+".new", config))
	require.Eventually(t, func() bool {
		_, err := l.client(t).Decrypt(in3s(t), decryptOf(e))
		return err == nil
	}, 40*time.Second, 100*time.Millisecond)
	l.roundTrip(t)
}

// Managed identity in the style of App Service, by either ID.
func TestServe_AppServiceIdentity(t *testing.T) {
	const resource = "/subscriptions/s/resourcegroups/r/providers/Microsoft.ManagedIdentity/userAssignedIdentities/x"
	const user = "77777777-bbbb-cccc-dddd-eeeeeeeeeeee"
	for id, want := range map[string]string{"": "", user: "client_id=" + user, resource: "mi_res_id=" + resource} {
		srv, v, version := newVault(t, vault.Config{})
		srv.SetIdentities(vault.Identity{ClientID: srv.ClientID, System: true}, vault.Identity{ClientID: user, ResourceID: resource})
		require.NoError(t, srv.AddPrincipal(vault.Principal{ClientID: user}))
		require.NoError(t, v.Allow(user, vault.PermEncrypt, vault.PermDecrypt))
		dir := shortDir(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "azure.json"), encode(t, map[string]any{"useManagedIdentityExtension": true, "userAssignedIdentityID": id}), 0o600))
		p := prepare(t, dir, append(srv.Env(), srv.IdentityEnv()...), "--key-version="+version).start(t).serving(t)
		l := &lab{process: p, srv: srv, vault: v, version: version}
		l.roundTrip(t)
		srv.RevokeTokens()
		l.roundTrip(t)
		require.Equal(t, 2, srv.Calls()["identity"])
		for _, r := range srv.Requests() {
			if r.Op == vault.OpIdentity {
				require.Equal(t, want, r.Identity)
				require.Equal(t, "https://vault.azure.net", r.Audience)
			}
		}
	}
}
