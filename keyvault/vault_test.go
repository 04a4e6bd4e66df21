package keyvault_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/stretchr/testify/require"
)

// A lab is an emulated vault with one key, and a client that has signed in to it.
type lab struct {
	srv  *vault.Server
	kv   *vault.Vault
	ref  keyvault.Ref
	c    *keyvault.Client
	kr   *keyvault.Keyring
	seen *witness
}

func newLab(t *testing.T, cfg vault.Config) *lab {
	t.Helper()
	srv, err := vault.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = srv.Close() })
	l := &lab{srv: srv, kv: srv.Vault("kvlab")}
	require.NoError(t, l.kv.ImportKey("k1", v2, testKey(t)))
	l.ref = keyvault.Ref{Host: l.kv.Host(), Name: "k1", Version: v2}
	path, err := srv.AzureJSON(t.TempDir())
	require.NoError(t, err)
	l.connect(t, path, srv.Transport())
	return l
}

func (l *lab) connect(t *testing.T, path string, rt http.RoundTripper) {
	t.Helper()
	cfg, err := keyvault.ReadConfig(path)
	require.NoError(t, err)
	cred, err := keyvault.NewCredential(cfg, keyvault.CredentialOptions{Transport: l.srv.Transport()})
	require.NoError(t, err)
	l.c, l.seen = newClient(t, rt, cred)
	l.kr, err = keyvault.NewPinned(keyvault.KeyringConfig{Vault: l.c, Write: l.ref})
	require.NoError(t, err)
}

func TestVault_RoundTripAndRotation(t *testing.T) {
	l := newLab(t, vault.Config{})
	seed := bytes.Repeat([]byte{7}, 32)
	block, ref, err := l.kr.Encrypt(within(t, 3*time.Second), l.kr.KeyID(""), seed)
	require.NoError(t, err)
	require.Equal(t, l.ref, ref)
	require.Len(t, block, 256)
	plain, _, err := l.kr.Decrypt(within(t, 3*time.Second), l.kr.KeyID(""), "", block)
	require.NoError(t, err)
	require.Equal(t, seed, plain)
	require.Equal(t, 1, l.srv.Calls()["token"])
	require.Equal(t, 1, l.srv.Calls()["challenge"])

	// A version that somebody else has made is found by listing, without a hint.
	next, err := l.kv.CreateKey("k1", vault.KeyOptions{Bits: 2048})
	require.NoError(t, err)
	newer := l.ref.WithVersion(next)
	block, err = l.c.Encrypt(within(t, 3*time.Second), newer, seed)
	require.NoError(t, err)
	plain, ref, err = l.kr.Decrypt(within(t, 3*time.Second), newer.KeyID(), "", block)
	require.NoError(t, err)
	require.Equal(t, newer, ref)
	require.Equal(t, seed, plain)
	require.Equal(t, 1, l.srv.Calls()["list"])
	require.Equal(t, l.ref, l.kr.WriteKey(), "pinned")

	// The wrong version's block is the caller's fault.
	_, err = l.c.Decrypt(within(t, 3*time.Second), l.ref, block)
	require.Equal(t, keyvault.BadCiphertext, failure(t, err).Reason)

	a, err := l.c.Get(within(t, 3*time.Second), l.ref.WithVersion(""))
	require.NoError(t, err)
	require.Equal(t, newer, a.Key)
	require.WithinDuration(t, time.Now(), a.Date, time.Minute)
	all, err := l.c.Versions(within(t, 3*time.Second), l.ref)
	require.NoError(t, err)
	require.Len(t, all, 2)
}

// The permissions that the existing plugins' guide grants are enough.
func TestVault_EncryptAndDecryptPermissionsSuffice(t *testing.T) {
	l := newLab(t, vault.Config{})
	require.NoError(t, l.kv.Allow(l.srv.ClientID, vault.PermEncrypt, vault.PermDecrypt))
	block, _, err := l.kr.Encrypt(within(t, 3*time.Second), l.kr.KeyID(""), []byte("seed"))
	require.NoError(t, err)
	_, err = l.c.Get(within(t, 3*time.Second), l.ref)
	e := failure(t, err)
	require.Equal(t, keyvault.AccessDenied, e.Reason)
	require.Contains(t, e.Text, `permission "get"`)
	_, _, err = l.kr.Decrypt(within(t, 3*time.Second), l.ref.WithVersion(v1).KeyID(), "", block)
	e = failure(t, err)
	require.Equal(t, keyvault.UnknownKey, e.Reason)
	require.Contains(t, e.Text, "--decrypt-key=")
	plain, _, err := l.kr.Decrypt(within(t, 3*time.Second), l.kr.KeyID(""), "", block)
	require.NoError(t, err)
	require.Equal(t, []byte("seed"), plain)
}

func TestVault_KeyStates(t *testing.T) {
	l := newLab(t, vault.Config{DeleteDelay: -1})
	block, err := l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
	require.NoError(t, err)
	bg := keyvault.Background(t.Context()) // past the breaker
	decrypt := func() *keyvault.Error {
		_, err := l.c.Decrypt(bg, l.ref, block)
		return failure(t, err)
	}
	healed := func() {
		_, err := l.c.Decrypt(bg, l.ref, block)
		require.NoError(t, err)
	}

	require.NoError(t, l.kv.SetEnabled("k1", l.ref.Version, false))
	require.Equal(t, keyvault.KeyDisabled, decrypt().Reason)
	a, err := l.c.Get(bg, l.ref)
	require.NoError(t, err)
	require.False(t, a.Enabled)
	require.NoError(t, l.kv.SetEnabled("k1", l.ref.Version, true))
	healed()

	require.NoError(t, l.kv.SetExpires("k1", l.ref.Version, time.Now().Add(-time.Hour)))
	_, err = l.c.Encrypt(bg, l.ref, []byte("seed"))
	require.Equal(t, keyvault.KeyExpired, failure(t, err).Reason)
	healed()

	require.NoError(t, l.kv.DeleteKey("k1"))
	require.Equal(t, keyvault.KeyDeleted, decrypt().Reason)
	d, err := l.c.Deleted(bg, l.ref)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().AddDate(0, 0, 90), d.ScheduledPurge, 48*time.Hour)
	require.NoError(t, l.kv.RecoverKey("k1"))
	healed()
	_, err = l.c.Deleted(bg, l.ref)
	require.Equal(t, keyvault.KeyNotFound, failure(t, err).Reason)
}

func TestVault_RevokedTokenIsSurvived(t *testing.T) {
	l := newLab(t, vault.Config{})
	_, err := l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
	require.NoError(t, err)
	for range 2 {
		l.srv.RevokeTokens()
		_, err = l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
		require.NoError(t, err)
	}
	require.Equal(t, 3, l.srv.TokensIssued())
}

// Case K07: one fault costs one more call and not the request.
func TestVault_OneFaultIsSurvived(t *testing.T) {
	l := newLab(t, vault.Config{})
	_, err := l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
	require.NoError(t, err)
	for _, f := range []vault.Fault{{Status: 503}, {Status: 500}, {Status: 502}, {Status: 504}, {Status: 408}, {Reset: true}} {
		f.Op, f.Times = "encrypt", 1
		l.srv.ResetCalls()
		l.srv.AddFault(f)
		_, err := l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
		require.NoError(t, err, f)
		require.Equal(t, 2, l.srv.Calls()["encrypt"])
	}
}

// Cases K09, K10 and T02: whatever fails between here and the vault is told in
// the caller's time, with the host's name.
func TestVault_NetworkFaultsKeepTheirCause(t *testing.T) {
	for name, tt := range map[string]struct {
		fault  vault.Fault
		reason keyvault.Reason
		cause  keyvault.Cause
		text   string
	}{
		"hang":      {vault.Fault{Hang: true}, keyvault.Unreachable, keyvault.CauseTimeout, "no answer from kvlab.vault.azure.net within 58"},
		"slow body": {vault.Fault{SlowBody: time.Second}, keyvault.Unreachable, keyvault.CauseTimeout, "no answer from"},
		"reset":     {vault.Fault{Reset: true}, keyvault.Unreachable, keyvault.CauseTCP, "reset"},
		"cut":       {vault.Fault{Cut: true}, keyvault.Unreachable, keyvault.CauseTCP, "closed"},
		"refused":   {vault.Fault{Refuse: true, Host: "kvlab"}, keyvault.Unreachable, keyvault.CauseTCP, "refused"},
		"nxdomain":  {vault.Fault{DNS: vault.DNSNotFound, Host: "kvlab"}, keyvault.VaultNotFound, keyvault.CauseDNS, "does not exist"},
		"servfail":  {vault.Fault{DNS: vault.DNSServFail, Host: "kvlab"}, keyvault.Unreachable, keyvault.CauseDNS, "resolver fails"},
		"untrusted": {vault.Fault{TLS: vault.TLSUntrusted, Host: "kvlab"}, keyvault.Unreachable, keyvault.CauseTLS, "not trusted here"},
		"name":      {vault.Fault{TLS: vault.TLSWrongName, Host: "kvlab"}, keyvault.Unreachable, keyvault.CauseTLS, "another name"},
		"expired":   {vault.Fault{TLS: vault.TLSExpired, Host: "kvlab"}, keyvault.Unreachable, keyvault.CauseTLS, "expired"},
		"alert":     {vault.Fault{TLS: vault.TLSAlert, Host: "kvlab"}, keyvault.Unreachable, keyvault.CauseTLS, "TLS"},
		"100 MB":    {vault.Fault{Status: 200, Body: "{", BodySize: 100 << 20}, keyvault.Unreachable, keyvault.CauseServer, "more than"},
		"redirect":  {vault.Fault{Redirect: "https://login.microsoftonline.com/x"}, keyvault.Unknown, "", "http 307"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, vault.Config{})
			// Sign in, on a connection that is not kept.
			rt := l.srv.Transport()
			cfg, err := keyvault.ReadConfig(azureJSON(t, l.srv))
			require.NoError(t, err)
			cred, err := keyvault.NewCredential(cfg, keyvault.CredentialOptions{Transport: l.srv.Transport()})
			require.NoError(t, err)
			c, _ := newClient(t, rt, cred)
			_, err = c.Get(within(t, 3*time.Second), l.ref)
			require.NoError(t, err)
			rt.CloseIdleConnections()
			l.srv.AddFault(tt.fault)
			_, err = c.Encrypt(within(t, 600*time.Millisecond), l.ref, []byte("seed"))
			e := failure(t, err)
			require.Equal(t, tt.reason, e.Reason, e.Text)
			require.Equal(t, tt.cause, e.Cause, e.Text)
			require.Contains(t, e.Text, tt.text)
			require.Contains(t, e.Text, "kvlab.vault.azure.net")
		})
	}
}

func azureJSON(t *testing.T, srv *vault.Server) string {
	t.Helper()
	path, err := srv.AzureJSON(t.TempDir())
	require.NoError(t, err)
	return path
}

// Once warm, 64 callers open no connection.
func TestVault_ConnectionsAreReused(t *testing.T) {
	l := newLab(t, vault.Config{})
	l.connect(t, azureJSON(t, l.srv), keyvault.TransportTo(l.srv.Addr(), l.srv.CertPool()))
	l.srv.AddFault(vault.Fault{Op: "encrypt", Delay: 20 * time.Millisecond})
	burst := func(rounds int) {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range rounds {
					_, err := l.c.Encrypt(within(t, 20*time.Second), l.ref, []byte("seed"))
					require.NoError(t, err)
				}
			})
		}
		wg.Wait()
	}
	// A cold start dials more than it needs, and the last of these end late. A
	// pool that is too small dials for ever.
	for range 10 {
		before := l.srv.ConnectionsTo(l.ref.Host)
		burst(10)
		if l.srv.ConnectionsTo(l.ref.Host) == before {
			return
		}
	}
	t.Fatal("640 calls always open a connection")
}

func TestVault_IdenticalDecryptsAreOneCall(t *testing.T) {
	l := newLab(t, vault.Config{})
	block, err := l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
	require.NoError(t, err)
	l.srv.AddFault(vault.Fault{Op: "decrypt", Delay: 200 * time.Millisecond})
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			plain, _, err := l.kr.Decrypt(within(t, 10*time.Second), l.kr.KeyID(""), "", block)
			require.NoError(t, err)
			require.Equal(t, []byte("seed"), plain)
		})
	}
	wg.Wait()
	require.Equal(t, 1, l.srv.Calls()["decrypt"])
}

// Case K10: the vault sees that the caller has left.
func TestVault_HangIsCancelledAtTheVault(t *testing.T) {
	l := newLab(t, vault.Config{})
	_, err := l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
	require.NoError(t, err)
	l.srv.AddFault(vault.Fault{Op: "decrypt", Hang: true})
	_, _, err = l.kr.Decrypt(within(t, 300*time.Millisecond), l.kr.KeyID(""), "", []byte("block"))
	require.Equal(t, keyvault.CauseTimeout, failure(t, err).Cause)
	require.Eventually(t, func() bool {
		for _, r := range l.srv.Requests() {
			if r.Op == "decrypt" && r.Cancelled {
				return true
			}
		}
		return false
	}, 5*time.Second, 5*time.Millisecond)
}

func TestVault_SignInRefused(t *testing.T) {
	l := newLab(t, vault.Config{})
	for name, tt := range map[string]struct {
		change map[string]string
		text   string
	}{
		"secret":       {map[string]string{"aadClientSecret": "SECRETCANARY"}, "AADSTS7000215"},
		"application":  {map[string]string{"aadClientId": "99999999-bbbb-cccc-dddd-eeeeeeeeeeee"}, "AADSTS700016"},
		"other tenant": {map[string]string{"tenantId": "99999999-2222-3333-4444-555555555555"}, "belongs to another tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			fields := map[string]string{"tenantId": l.srv.TenantID, "aadClientId": l.srv.ClientID, "aadClientSecret": l.srv.ClientSecret}
			maps.Copy(fields, tt.change)
			data, err := json.Marshal(fields)
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "azure.json")
			require.NoError(t, os.WriteFile(path, data, 0o600))
			l.connect(t, path, l.srv.Transport())
			_, err = l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
			e := failure(t, err)
			require.Equal(t, keyvault.CredentialsRefused, e.Reason, e.Text)
			require.Contains(t, e.Text, tt.text)
			require.NotContains(t, e.Error(), "CANARY")
			require.NotContains(t, e.Error(), fields["aadClientId"])
			require.NotContains(t, e.Error(), fields["tenantId"])
		})
	}
}

func TestVault_SignInUnavailable(t *testing.T) {
	l := newLab(t, vault.Config{})
	for name, tt := range map[string]struct {
		fault vault.Fault
		cause keyvault.Cause
	}{
		"503":     {vault.Fault{Op: "token", Status: 503}, keyvault.CauseServer},
		"429":     {vault.Fault{Op: "token", Status: 429}, keyvault.CauseServer},
		"hang":    {vault.Fault{Op: "token", Hang: true}, keyvault.CauseTimeout},
		"refused": {vault.Fault{Host: "login.microsoftonline.com", Refuse: true}, keyvault.CauseTCP},
		"dns":     {vault.Fault{Host: "login.microsoftonline.com", DNS: vault.DNSNotFound}, keyvault.CauseDNS},
		"tls":     {vault.Fault{Host: "login.microsoftonline.com", TLS: vault.TLSUntrusted}, keyvault.CauseTLS},
	} {
		t.Run(name, func(t *testing.T) {
			l.connect(t, azureJSON(t, l.srv), l.srv.Transport())
			id := l.srv.AddFault(tt.fault)
			_, err := l.c.Encrypt(within(t, 2*time.Second), l.ref, []byte("seed"))
			e := failure(t, err)
			require.Equal(t, keyvault.CredentialsUnavailable, e.Reason, e.Text)
			require.Equal(t, tt.cause, e.Cause, e.Text)
			l.srv.RemoveFault(id)
		})
	}
}
