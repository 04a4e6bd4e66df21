package main

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"
)

// A lab is an emulated vault and the program that serves from it.
type lab struct {
	*process
	srv     *vault.Server
	vault   *vault.Vault
	version string
	health  string // base URL
	metrics string // URL
}

func newVault(t *testing.T, cfg vault.Config) (*vault.Server, *vault.Vault, string) {
	srv, err := vault.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { srv.Close() })
	v := srv.Vault("kvlab")
	version, err := v.CreateKey("k1", vault.KeyOptions{Created: time.Now().Add(-time.Hour)})
	require.NoError(t, err)
	return srv, v, version
}

// startLab serves from a fresh vault. change may script the vault before the
// program starts.
func startLab(t *testing.T, change func(*vault.Server, *vault.Vault), env []string, args ...string) *lab {
	srv, v, version := newVault(t, vault.Config{})
	if change != nil {
		change(srv, v)
	}
	return startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), env, args...)
}

func startIn(t *testing.T, l *lab, dir string, env []string, args ...string) *lab {
	_, err := l.srv.AzureJSON(dir)
	require.NoError(t, err)
	health, metrics := freePort(t), freePort(t)
	l.health, l.metrics = "http://127.0.0.1:"+health, "http://127.0.0.1:"+metrics+"/metrics"
	args = append([]string{"--healthz-port=" + health, "--metrics-addr=" + metrics}, args...)
	if !byURL(args) {
		args = append([]string{"--key-version=" + l.version}, args...)
	}
	l.process = prepare(t, dir, append(l.srv.Env(), env...), args...).start(t).serving(t)
	return l
}

func (l *lab) ref() keyvault.Ref {
	return keyvault.Ref{Host: l.vault.Host(), Name: "k1", Version: l.version}
}

// seed has the length of kube-apiserver's.
const seed = "SEEDCANARY-0123456789abcdef-0123"

// roundTrip encrypts and decrypts as kube-apiserver does.
func (l *lab) roundTrip(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := l.client(t)
	status, err := client.Status(ctx, &kmsapi.StatusRequest{})
	require.NoError(t, err)
	require.Equal(t, "ok", status.Healthz)
	require.Equal(t, l.ref().KeyID(), status.KeyId)
	enc, err := client.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: []byte(seed), Uid: "u1"})
	require.NoError(t, err)
	require.Equal(t, status.KeyId, enc.KeyId)
	dec, err := client.Decrypt(ctx, &kmsapi.DecryptRequest{Ciphertext: enc.Ciphertext, KeyId: enc.KeyId, Annotations: enc.Annotations, Uid: "u2"})
	require.NoError(t, err)
	require.Equal(t, seed, string(dec.Plaintext))
}

func TestServe(t *testing.T) {
	l := startLab(t, nil, nil, "--log-format-json")
	l.roundTrip(t)
	for _, path := range []string{"/livez", "/healthz", "/readyz"} {
		code, body := get(t, l.health+path)
		require.Equal(t, 200, code)
		require.Equal(t, "ok", body)
	}
	_, series := get(t, l.metrics)
	for _, line := range []string{
		`azure_kms_requests_total{key_id_hash="` + keyvault.KeyIDHash(l.ref().KeyID()) + `",operation="decrypt",reason="Success"} 1`,
		`azure_kms_vault_requests_total{operation="encrypt",reason="Success"} 2`, // the canary and ours
		`azure_kms_vault_requests_total{operation="get",reason="Success"} 0`,
		`azure_kms_key_usable 1`,
		`azure_kms_status_ok 1`,
	} {
		require.Contains(t, series, line+"\n")
	}
	// H01: none of the questions reach the vault.
	calls := l.srv.Calls()
	for range 100 {
		get(t, l.health+"/healthz")
		get(t, l.health+"/readyz")
		_, err := l.status(t)
		require.NoError(t, err)
	}
	require.Equal(t, calls, l.srv.Calls())

	log := l.stderr.String()
	require.Regexp(t, `"msg":"serving".*"key":"https://kvlab.vault.azure.net/keys/k1/`+l.version+`","follows_newest_version":false,"write_format":"azure","socket":"unix://`, log)
	require.Regexp(t, `"msg":"key ID changed","from":"","to":"`+l.ref().KeyID()+`","version":"`+l.version+`","cause":"start"`, log)
}

// C01, end to end: the same key, however it is wrapped; and by its URL.
func TestServe_Quoted(t *testing.T) {
	l := startLab(t, nil, nil)
	want, err := l.status(t)
	require.NoError(t, err)
	for _, args := range [][]string{
		{"--keyvault-name=\"kvlab\"", "--key-name= k1 ", "--key-version=\"" + l.version + "\r\n\""},
	} {
		other := startIn(t, &lab{srv: l.srv, vault: l.vault, version: l.version}, shortDir(t), nil, args...)
		got, err := other.status(t)
		require.NoError(t, err)
		require.Equal(t, want.KeyId, got.KeyId)
		other.roundTrip(t)
	}
}

// T04: the permissions that the existing plugins document are enough, and a
// restart finds its canary again.
func TestServe_EncryptAndDecryptOnly(t *testing.T) {
	l := startLab(t, func(srv *vault.Server, v *vault.Vault) {
		srv.AddFault(vault.Fault{Op: "get", Status: 403, Code: "Forbidden", InnerCode: "ForbiddenByPolicy"})
	}, nil)
	l.roundTrip(t)
	code, _ := get(t, l.health+"/readyz")
	require.Equal(t, 200, code)

	before := l.srv.Calls()["encrypt"]
	require.NoError(t, l.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, l.exit(t))
	again := startIn(t, &lab{srv: l.srv, vault: l.vault, version: l.version}, l.dir, nil)
	_, err := again.status(t)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(again.stderr.String(), "key is usable") }, patience, time.Millisecond)
	require.Equal(t, before, l.srv.Calls()["encrypt"], "the canary was kept")
}

// A restart while the vault is away answers ok from the state file; without
// one it says what is wrong.
func TestServe_RestartInOutage(t *testing.T) {
	l := startLab(t, nil, nil)
	l.roundTrip(t)
	require.NoError(t, l.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, l.exit(t))
	state, err := filepath.Glob(filepath.Join(l.dir, "k.sock.*.state"))
	require.NoError(t, err)
	require.Len(t, state, 1)
	data, err := os.ReadFile(state[0])
	require.NoError(t, err)
	require.Contains(t, string(data), `"lastSuccess"`)

	l.srv.AddFault(vault.Fault{Refuse: true})
	again := startIn(t, &lab{srv: l.srv, vault: l.vault, version: l.version}, l.dir, nil)
	status, err := again.status(t)
	require.NoError(t, err)
	require.Equal(t, "ok", status.Healthz)
	require.NoError(t, again.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, again.exit(t))

	require.NoError(t, os.Remove(state[0]))
	again = startIn(t, &lab{srv: l.srv, vault: l.vault, version: l.version}, l.dir, nil)
	_, err = again.status(t)
	require.ErrorContains(t, err, "Unreachable: ")
}

// A remote fault at the start leaves the socket up and says the reason, once.
func TestServe_RemoteFaults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*vault.Server, *vault.Vault)
		args   []string
		reason keyvault.Reason
	}{
		{"no such key", nil, []string{"--key-name=k2"}, keyvault.KeyNotFound},
		{"no such version", nil, []string{"--key-version=ffffffffffffffffffffffffffffffff"}, keyvault.KeyNotFound},
		// Behind a proxy it is the proxy that resolves names.
		{"no such vault", nil, []string{"--keyvault-name=kvother"}, keyvault.Unreachable},
		{"denied", func(srv *vault.Server, _ *vault.Vault) {
			srv.AddFault(vault.Fault{Status: 403, Code: "Forbidden", InnerCode: "AccessDenied"})
		}, nil, keyvault.AccessDenied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := startLab(t, tc.change, nil, tc.args...)
			_, err := l.status(t)
			require.ErrorContains(t, err, string(tc.reason)+": ")
			code, body := get(t, l.health+"/readyz")
			require.Equal(t, 503, code)
			require.Contains(t, body, "key: "+string(tc.reason)+": ")
			code, _ = get(t, l.health+"/livez")
			require.Equal(t, 200, code)
			require.Equal(t, 1, strings.Count(l.stderr.String(), "key cannot be used now"), l.stderr.String())
		})
	}
}

// --healthz-mode=key: the health check of the existing plugins, without their calls.
func TestServe_HealthzFollowsKey(t *testing.T) {
	l := startLab(t, nil, nil, "--healthz-mode=key", "--key-name=k2")
	code, body := get(t, l.health+"/healthz")
	require.Equal(t, 503, code)
	require.Contains(t, body, "key: KeyNotFound: ")
}

// L02: whatever is asked and refused, no output holds what passed through.
func TestServe_NoSecrets(t *testing.T) {
	for _, format := range []string{"--log-format-json", "--log-format-json=false"} {
		srv, v, version := newVault(t, vault.Config{})
		l := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), []string{"AZURE_SDK_GO_LOGGING=all"}, "-v=10", format)
		l.roundTrip(t)
		client := l.client(t)
		enc, err := client.Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: []byte("PLAINCANARY"), Uid: "UIDCANARY"})
		require.NoError(t, err)

		var texts []string
		note := func(err error) {
			require.Error(t, err)
			texts = append(texts, err.Error())
		}
		srv.AddFault(vault.Fault{Status: 403, Body: `{"error":{"code":"Forbidden","message":"caller eyJCANARY appid=CALLERCANARY","innererror":{"code":"AccessDenied"}}}`})
		_, err = client.Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: []byte("PLAINCANARY"), Uid: "UIDCANARY"})
		note(err)
		_, err = client.Decrypt(t.Context(), &kmsapi.DecryptRequest{Ciphertext: enc.Ciphertext, KeyId: enc.KeyId, Annotations: enc.Annotations, Uid: "UIDCANARY"})
		note(err)
		srv.ClearFaults()
		srv.AddFault(vault.Fault{Status: 401, Body: `{"error":{"code":"Unauthorized","message":"Bearer eyJCANARY"}}`})
		_, err = client.Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: []byte("PLAINCANARY"), Uid: "u"})
		note(err)
		_, body := get(t, l.health+"/readyz?verbose")
		_, series := get(t, l.metrics)
		require.NoError(t, l.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 0, l.exit(t))
		texts = append(texts, body, series, l.stderr.String())

		for _, text := range texts {
			for _, secret := range []string{
				srv.ClientSecret, "eyJ", "CALLERCANARY", "PLAINCANARY", seed,
				base64.RawURLEncoding.EncodeToString([]byte("PLAINCANARY")), base64.StdEncoding.EncodeToString(enc.Ciphertext)[:40], string(enc.Ciphertext)[:40],
			} {
				require.NotContains(t, text, secret)
			}
		}
	}
}

// --key-operations=wrap uses the other pair of permissions, and only that.
func TestServe_Wrap(t *testing.T) {
	l := startLab(t, nil, nil, "--key-operations=wrap")
	l.roundTrip(t)
	calls := l.srv.Calls()
	require.Zero(t, calls["encrypt"])
	require.Zero(t, calls["decrypt"])
	code, _ := get(t, l.health+"/readyz")
	require.Equal(t, 200, code)
}

// --ca-file is enough; the system's certificates need not know the vault's.
func TestServe_CAFile(t *testing.T) {
	srv, v, version := newVault(t, vault.Config{})
	l := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), []string{"SSL_CERT_FILE=/dev/null", "SSL_CERT_DIR=/dev/null"}, "--ca-file="+srv.CAFile())
	l.roundTrip(t)
}

// An abstract socket works as a file does, without a state file.
func TestServe_AbstractSocket(t *testing.T) {
	dir := shortDir(t)
	srv, v, version := newVault(t, vault.Config{})
	_, err := srv.AzureJSON(dir)
	require.NoError(t, err)
	name := "@" + filepath.Base(dir)
	p := prepare(t, dir, srv.Env(), "--key-version="+version, "--listen-addr=unix:///"+name)
	p.socket = name
	p.start(t).serving(t)
	l := &lab{process: p, srv: srv, vault: v, version: version}
	l.roundTrip(t)
	files, err := filepath.Glob(filepath.Join(dir, "*.state"))
	require.NoError(t, err)
	require.Empty(t, files)
}

// Traffic is evidence: its failures show before the next probe, and its
// successes end them. Status stays ok meanwhile.
func TestServe_TrafficIsEvidence(t *testing.T) {
	l := startLab(t, nil, nil).usable(t) // the first probe must not end amid the test
	client := l.client(t)
	enc, err := client.Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: []byte(seed), Uid: "u"})
	require.NoError(t, err)
	decrypt := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := client.Decrypt(ctx, &kmsapi.DecryptRequest{Ciphertext: enc.Ciphertext, KeyId: enc.KeyId, Annotations: enc.Annotations, Uid: "u"})
		return err
	}
	require.NoError(t, decrypt())

	l.srv.AddFault(vault.Fault{Op: "decrypt", Status: 403, Code: "Forbidden", InnerCode: "AccessDenied"})
	require.ErrorContains(t, decrypt(), "AccessDenied: ")
	code, body := get(t, l.health+"/readyz")
	require.Equal(t, 503, code)
	require.Contains(t, body, "key: AccessDenied: ")
	status, err := l.status(t)
	require.NoError(t, err)
	require.Equal(t, "ok", status.Healthz)

	l.srv.ClearFaults()
	require.Eventually(t, func() bool { return decrypt() == nil }, patience, 100*time.Millisecond, "the breaker asks once a second")
	code, _ = get(t, l.health+"/readyz")
	require.Equal(t, 200, code)
	require.Contains(t, l.stderr.String(), "key cannot be used now")
}

// A lost permission to encrypt fails /readyz until an encrypt succeeds, however
// well decrypts go meanwhile; Status stays ok.
func TestServe_EncryptRefused(t *testing.T) {
	l := startLab(t, nil, nil).usable(t)
	enc := l.encrypt(t, []byte(seed))
	client := l.client(t)
	encrypt := func() error {
		_, err := client.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: []byte(seed), Uid: "u"})
		return err
	}
	l.srv.AddFault(vault.Fault{Op: "encrypt", Status: 403, Code: "Forbidden", InnerCode: "ForbiddenByRbac"})
	require.ErrorContains(t, encrypt(), "AccessDenied: ")
	_, err := client.Decrypt(in3s(t), decryptOf(enc))
	require.NoError(t, err)
	code, body := get(t, l.health+"/readyz")
	require.Equal(t, 503, code)
	require.Contains(t, body, "key: AccessDenied: ")
	status, err := l.status(t)
	require.NoError(t, err)
	require.Equal(t, "ok", status.Healthz)

	l.srv.ClearFaults()
	require.Eventually(t, func() bool { return encrypt() == nil }, patience, 100*time.Millisecond)
	code, _ = get(t, l.health+"/readyz")
	require.Equal(t, 200, code)
}
