package main

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"
)

// proxyMode are the flags that lead to the emulator's forwarding service, and no
// other way out.
func proxyMode(t *testing.T, srv *vault.Server) (args, env []string) {
	u, err := url.Parse(srv.ProxyURL())
	require.NoError(t, err)
	return []string{"--proxy-mode", "--proxy-address=" + u.Hostname(), "--proxy-port=" + u.Port()},
		[]string{"HTTPS_PROXY=", "HTTP_PROXY=", "https_proxy=", "http_proxy="}
}

// Case R06: in proxy mode every request goes to the forwarding service, sign-in
// included, and the key ID stays that of the vault or Managed HSM: data that was
// written without the service can be read with it, and the other way round.
func TestServe_ProxyMode(t *testing.T) {
	for name, flags := range map[string][]string{
		"vault":       nil,
		"Managed HSM": {"--managed-hsm", "--keyvault-name=hsmlab"},
		"key URL":     {"--key-url"}, // completed below
	} {
		t.Run(name, func(t *testing.T) {
			srv, v, version := newVault(t, vault.Config{})
			if name != "vault" {
				v, version = newHSM(t, srv)
			}
			if name == "key URL" {
				flags = []string{"--key-url=" + v.KeyURL("k1", version)}
			}
			direct := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), nil, flags...)
			direct.roundTrip(t)
			written := direct.encrypt(t, []byte(seed))
			require.Equal(t, keyvault.Ref{Host: v.Host(), Name: "k1", Version: version}.KeyID(), written.KeyId)
			require.NoError(t, direct.cmd.Process.Kill())
			direct.exit(t)

			connections := srv.Connections()
			srv.ResetCalls()
			args, env := proxyMode(t, srv)
			l := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), env, append(flags, args...)...)
			l.roundTrip(t) // with the ID of the vault
			d, err := l.client(t).Decrypt(in3s(t), decryptOf(written))
			require.NoError(t, err)
			require.Equal(t, seed, string(d.Plaintext))
			code, body := get(t, l.health+"/readyz")
			require.Equal(t, 200, code, body)

			require.Equal(t, connections, srv.Connections(), "nothing but the forwarding service was connected to")
			require.Empty(t, srv.Refused())
			require.Equal(t, 1, srv.Calls()["token"])
			for _, r := range srv.Requests() {
				require.Contains(t, []string{v.Host(), "login.microsoftonline.com"}, r.Host)
				if r.Op == vault.OpToken {
					require.Equal(t, v.Audience(), r.Audience)
				}
			}
		})
	}
}

// A forwarding service that is away, or that cannot find the vault, is told as
// such; it comes back without a restart.
func TestServe_ProxyModeFaults(t *testing.T) {
	srv, v, version := newVault(t, vault.Config{})
	args, env := proxyMode(t, srv)
	l := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), env, args...).usable(t)
	client := l.client(t)
	encrypt := func() error {
		_, err := client.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: []byte(seed), Uid: "u"})
		return err
	}
	for name, tt := range map[string]struct {
		fault vault.Fault
		text  string
	}{
		"away":    {vault.Fault{Refuse: true}, "connecting: connection refused"},
		"no name": {vault.Fault{Host: "kvlab", DNS: vault.DNSNotFound}, "http 502"},
	} {
		t.Run(name, func(t *testing.T) {
			l.srv.AddFault(tt.fault)
			require.ErrorContains(t, encrypt(), "Unreachable: ")
			require.ErrorContains(t, encrypt(), tt.text)
			l.srv.ClearFaults()
			require.Eventually(t, func() bool { return encrypt() == nil }, patience, 50*time.Millisecond, "the breaker asks once a second")
		})
	}
}
