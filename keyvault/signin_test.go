package keyvault_test

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/stretchr/testify/require"
)

// signIn connects the lab with the given fields of azure.json.
func (l *lab) signIn(t *testing.T, fields map[string]any, w keyvault.WorkloadIdentity) {
	t.Helper()
	data, err := json.Marshal(fields)
	require.NoError(t, err)
	cfg, err := keyvault.ReadConfig(writeFile(t, string(data)))
	require.NoError(t, err)
	cred, err := keyvault.NewCredential(cfg, keyvault.CredentialOptions{Transport: l.srv.Transport(), WorkloadIdentity: w})
	require.NoError(t, err)
	l.c, l.seen = newClient(t, l.srv.Transport(), cred)
}

func (l *lab) encrypt(t *testing.T) error {
	t.Helper()
	_, err := l.c.Encrypt(within(t, 20*time.Second), l.ref, []byte("seed"))
	return err
}

func TestSignIn_ClientCertificate(t *testing.T) {
	l := newLab(t, vault.Config{})
	first, second := selfSigned(t, testKey(t), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)), selfSigned(t, testKey(t), time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	use := func(certs ...*x509.Certificate) {
		require.NoError(t, l.srv.AddPrincipal(vault.Principal{ClientID: "cert-app", Certificates: certs}))
	}
	use(first)
	require.NoError(t, l.kv.Allow("cert-app", vault.PermEncrypt))
	path := filepath.Join(t.TempDir(), "cert.pem")
	require.NoError(t, os.WriteFile(path, pemOf(t, testKey(t), first), 0o600))
	l.signIn(t, map[string]any{"tenantId": l.srv.TenantID, "aadClientId": "cert-app", "aadClientCertPath": path}, keyvault.WorkloadIdentity{})
	require.NoError(t, l.encrypt(t))

	// A certificate that was exchanged on disk is used for the next token.
	use(second)
	require.NoError(t, os.WriteFile(path, pemOf(t, testKey(t), second), 0o600))
	l.srv.RevokeTokens()
	require.NoError(t, l.encrypt(t))

	// Of several of one key, the one that is valid longest, wherever it stands.
	longer := selfSigned(t, testKey(t), time.Now().Add(-time.Minute), time.Now().Add(2*time.Hour))
	expired := selfSigned(t, testKey(t), time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	use(longer)
	for _, certs := range [][]*x509.Certificate{{first, longer}, {longer, first}, {longer, expired}, {expired, longer}} {
		require.NoError(t, os.WriteFile(path, pemOf(t, testKey(t), certs...), 0o600))
		l.srv.RevokeTokens()
		require.NoError(t, l.encrypt(t))
	}
	use(second)
	require.NoError(t, os.WriteFile(path, pemOf(t, testKey(t), second), 0o600))
	l.srv.RevokeTokens()
	require.NoError(t, l.encrypt(t))

	// A file that is being written, or is not there at all, leaves the last one.
	whole := pemOf(t, testKey(t), first)
	for _, part := range [][]byte{nil, whole[:100], whole[:len(whole)/2], whole[:len(whole)-40]} {
		require.NoError(t, os.WriteFile(path, part, 0o600))
		l.srv.RevokeTokens()
		require.NoError(t, l.encrypt(t))
	}
	require.NoError(t, os.Remove(path))
	l.srv.RevokeTokens()
	require.NoError(t, l.encrypt(t))
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	use(first)
	l.srv.RevokeTokens()
	require.NoError(t, l.encrypt(t))
}

func TestSignIn_WorkloadIdentity(t *testing.T) {
	l := newLab(t, vault.Config{})
	require.NoError(t, l.srv.AddPrincipal(vault.Principal{ClientID: "wi-app", Assertions: []string{federated("J1")}}))
	require.NoError(t, l.kv.Allow("wi-app", vault.PermEncrypt))

	// As the kubelet projects a token: a symbolic link to a directory that changes.
	dir := t.TempDir()
	put := func(generation, token string) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, generation), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, generation, "token"), []byte(token), 0o600))
		require.NoError(t, os.Symlink(generation, filepath.Join(dir, "..new")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")))
	}
	put("one", federated("J1")+"\n")
	l.signIn(t, map[string]any{"useWorkloadIdentityExtension": true}, keyvault.WorkloadIdentity{
		ClientID: "wi-app", TenantID: l.srv.TenantID, TokenFile: filepath.Join(dir, "..data", "token"),
	})
	require.NoError(t, l.encrypt(t))

	require.NoError(t, l.srv.SetAssertions("wi-app", federated("J2")))
	put("two", federated("J2"))
	l.srv.RevokeTokens()
	require.NoError(t, l.encrypt(t))

	// An empty file is a moment of its exchange, not the end.
	put("three", "")
	l.signIn(t, map[string]any{"useWorkloadIdentityExtension": true}, keyvault.WorkloadIdentity{
		ClientID: "wi-app", TenantID: l.srv.TenantID, TokenFile: filepath.Join(dir, "..data", "token"),
	})
	e := failure(t, l.encrypt(t))
	require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
	require.Contains(t, e.Text, "empty file")
	put("four", federated("J2"))
	require.Eventually(t, func() bool { return l.encrypt(t) == nil }, 10*time.Second, 50*time.Millisecond)
}

func TestSignIn_WorkloadIdentityNeedsItsEnvironment(t *testing.T) {
	cfg, err := keyvault.ReadConfig(writeFile(t, `{"useWorkloadIdentityExtension":true}`))
	require.NoError(t, err)
	_, err = keyvault.NewCredential(cfg, keyvault.CredentialOptions{})
	for _, name := range []string{"AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"} {
		require.ErrorContains(t, err, name)
	}
}

func TestSignIn_ManagedIdentity(t *testing.T) {
	const user = "77777777-bbbb-cccc-dddd-eeeeeeeeeeee"
	const resource = "/subscriptions/s/resourcegroups/r/providers/Microsoft.ManagedIdentity/userAssignedIdentities/x"
	for name, tt := range map[string]struct {
		id   string
		want string
	}{
		"system":      {"", ""},
		"client ID":   {user, "client_id=" + user},
		"resource ID": {resource, "msi_res_id=" + resource},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, vault.Config{})
			system := "88888888-bbbb-cccc-dddd-" + versionID(int(time.Now().UnixNano()))[20:]
			l.srv.SetIdentities(vault.Identity{ClientID: system, System: true}, vault.Identity{ClientID: user, ResourceID: resource})
			require.NoError(t, l.kv.Allow(system, vault.PermEncrypt))
			require.NoError(t, l.kv.Allow(user, vault.PermEncrypt))
			// A service principal's fields beside it are not used.
			l.signIn(t, map[string]any{"useManagedIdentityExtension": true, "userAssignedIdentityID": tt.id, "aadClientId": "msi", "aadClientSecret": "msi"}, keyvault.WorkloadIdentity{})
			require.NoError(t, l.encrypt(t))
			l.srv.RevokeTokens()
			require.NoError(t, l.encrypt(t), "the library's own cache is passed by")
			require.Equal(t, 2, l.srv.Calls()["imds"])
			require.Zero(t, l.srv.Calls()["token"])
			for _, r := range l.srv.Requests() {
				if r.Op == "imds" {
					require.Equal(t, tt.want, r.Identity)
					require.Equal(t, "https://vault.azure.net", r.Audience)
				}
			}
		})
	}
}

func TestSignIn_MetadataServiceInTrouble(t *testing.T) {
	for name, faults := range map[string][]vault.Fault{
		"410":       {{Status: 410, Times: 2}},
		"404":       {{Status: 404, Times: 2}},
		"500":       {{Status: 500, Times: 2}},
		"slow":      {{Delay: 2 * time.Second, Times: 1}},
		"throttled": {{Status: 429, RetryAfter: time.Second, Times: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, vault.Config{})
			l.signIn(t, map[string]any{"useManagedIdentityExtension": true}, keyvault.WorkloadIdentity{})
			for _, f := range faults {
				f.Op = "imds"
				l.srv.AddFault(f)
			}
			require.NoError(t, l.encrypt(t))
		})
	}

	l := newLab(t, vault.Config{})
	l.signIn(t, map[string]any{"useManagedIdentityExtension": true}, keyvault.WorkloadIdentity{})
	l.srv.AddFault(vault.Fault{Op: "imds", Status: 400, Code: "invalid_request", Message: "Multiple user assigned identities exist"})
	e := failure(t, l.encrypt(t))
	require.Equal(t, keyvault.CredentialsRefused, e.Reason, e.Text)
	require.Contains(t, e.Text, "userAssignedIdentityID")
	require.Equal(t, 1, l.srv.Calls()["imds"], "it is permanent, so it is not repeated")
}

// The metadata service does not answer 403: what does is on the machine.
func TestSignIn_ManagedIdentityKeptAway(t *testing.T) {
	l := newLab(t, vault.Config{})
	l.srv.AddFault(vault.Fault{Op: "imds", Status: 403, Body: "no", ContentType: "text/plain"})
	l.signIn(t, map[string]any{"useManagedIdentityExtension": true}, keyvault.WorkloadIdentity{})
	e := failure(t, l.encrypt(t))
	require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
	require.Contains(t, e.Text, "(http 403); something on this machine keeps the process from it: check")
}
