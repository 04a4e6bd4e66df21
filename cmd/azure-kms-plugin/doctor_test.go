package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/doctor"
	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"
)

// A key that is well, with no plugin beside it and with one: each step says what it
// saw, and the vault has had one encrypt and one decrypt.
func TestDoctor_Well(t *testing.T) {
	l := startLab(t, nil, nil).usable(t)
	// The plugin's own calls go to another emulator than those that are counted. The
	// key ID is that of the same version.
	srv, v, _ := newVault(t, vault.Config{})
	_, err := v.CreateKey("k1", vault.KeyOptions{Version: l.version})
	require.NoError(t, err)
	dir, socket := shortDir(t), "--listen-addr=unix://"+l.socket
	_, err = srv.AzureJSON(dir)
	require.NoError(t, err)
	for name, args := range map[string][]string{
		"no plugin":      {"--key-version=" + l.version, "--listen-addr=unix://" + filepath.Join(dir, "other.sock")},
		"a plugin":       {"--key-version=" + l.version, socket},
		"the newest":     {"--key-url=" + l.vault.KeyURL("k1", ""), socket},
		"wrap and quiet": {"--key-version=" + l.version, "--key-operations=wrap", "--v=0", socket},
	} {
		t.Run(name, func(t *testing.T) {
			srv.ResetCalls()
			code, stdout, stderr := examine(t, dir, srv.Env(), append(args, "--output=json")...)
			require.Equal(t, 0, code, stdout)
			require.Empty(t, stderr)
			calls := srv.Calls()
			encrypt, decrypt := "encrypt", "decrypt"
			if strings.HasPrefix(name, "wrap") {
				encrypt, decrypt = "wrapkey", "unwrapkey"
			}
			require.Equal(t, map[string]int{"healthstatus": 1, "challenge": 1, "openid": 1, "token": 1, "get": 1, encrypt: 1, decrypt: 1}, calls)
			r := reported(t, stdout)
			require.Equal(t, "All is well: the key can be used.", r.Text)
			require.Equal(t, l.ref().URL(), r.Key)
			for step, says := range map[doctor.Name]string{
				doctor.Files: "sign-in with a client secret", doctor.DNS: "127.0.0.1, the proxy in HTTPS_PROXY", doctor.TCP: "takes connections",
				doctor.Proxy: "leads to kvlab", doctor.TLS: "TLS 1.3, CN=kvlab.vault.azure.net, issued by CN=Key Vault emulator CA, until ", doctor.Clock: "agree",
				doctor.Token:      "client secret, from login.microsoftonline.com, for https://vault.azure.net, good for 59m",
				doctor.Attributes: "version " + l.version, doctor.Validity: "enabled, no expiry", doctor.Encrypt: "32 random bytes to 256", doctor.Decrypt: "the same bytes again",
			} {
				s := stepOf(t, r, step)
				require.Contains(t, s.Text, says)
				require.Contains(t, []doctor.State{doctor.OK, doctor.Note}, s.State)
			}
			socket := stepOf(t, r, doctor.Socket)
			if name == "no plugin" {
				require.Equal(t, doctor.Note, socket.State)
				require.Contains(t, socket.Text, "nothing serves at ")
			} else {
				require.Equal(t, doctor.OK, socket.State)
				require.Contains(t, socket.Text, "the key ID of this version")
			}
			require.NotContains(t, stdout, srv.ClientSecret)
			require.NotContains(t, stdout, srv.ClientID)
		})
	}
	l.roundTrip(t) // the plugin has taken no notice
}

// What is wrong is found at its step, with the reason, what to do, and the exit status.
func TestDoctor_Finds(t *testing.T) {
	const anyVersion = "ffffffffffffffffffffffffffffffff"
	type trouble struct {
		change func(t *testing.T, srv *vault.Server, v *vault.Vault)
		env    func(t *testing.T) []string
		args   []string
		code   int
		step   doctor.Name
		state  doctor.State
		reason keyvault.Reason
		says   string
	}
	fault := func(f vault.Fault) func(*testing.T, *vault.Server, *vault.Vault) {
		return func(_ *testing.T, srv *vault.Server, _ *vault.Vault) { srv.AddFault(f) }
	}
	options := func(o vault.KeyOptions) func(*testing.T, *vault.Server, *vault.Vault) {
		return func(t *testing.T, _ *vault.Server, v *vault.Vault) {
			o.Version = anyVersion
			_, err := v.CreateKey("k1", o)
			require.NoError(t, err)
		}
	}
	allow := func(perms ...vault.Permission) func(*testing.T, *vault.Server, *vault.Vault) {
		return func(t *testing.T, srv *vault.Server, v *vault.Vault) {
			require.NoError(t, v.Allow(srv.ClientID, perms...))
		}
	}
	newest := []string{"--key-url=https://kvlab.vault.azure.net/keys/k1"}
	any := []string{"--key-version=" + anyVersion}
	for name, tc := range map[string]trouble{
		"name gone": {
			env:  func(t *testing.T) []string { return resolver(t, nil) },
			code: 2, step: doctor.DNS, reason: keyvault.VaultNotFound, says: "does not exist in DNS; check the vault's name",
		},
		"tcp refused": {
			env:  func(t *testing.T) []string { return resolver(t, net.IPv4(127, 83, 1, 9)) },
			code: 3, step: doctor.TCP, reason: keyvault.Unreachable, says: "connection refused look at routes and firewalls",
		},
		"proxy away": {
			env:  func(*testing.T) []string { return []string{"HTTPS_PROXY=" + nowhere, "https_proxy=" + nowhere} },
			code: 3, step: doctor.TCP, reason: keyvault.Unreachable, says: "look whether the proxy in HTTPS_PROXY runs at 127.0.0.1:1",
		},
		"name gone for the proxy": {
			change: func(_ *testing.T, srv *vault.Server, v *vault.Vault) { srv.RemoveVault(v.Host()) },
			code:   3, step: doctor.Proxy, reason: keyvault.Unreachable, says: "http 502 Bad Gateway: check that proxy",
		},
		"tls untrusted": {
			change: fault(vault.Fault{Host: "kvlab", TLS: vault.TLSUntrusted}),
			code:   3, step: doctor.TLS, reason: keyvault.Unreachable, says: "issued by CN=Key Vault emulator stranger",
		},
		"tls for another name": {
			change: fault(vault.Fault{Host: "kvlab", TLS: vault.TLSWrongName}),
			code:   3, step: doctor.TLS, reason: keyvault.Unreachable, says: "for another name",
		},
		"tls expired": {
			change: fault(vault.Fault{Host: "kvlab", TLS: vault.TLSExpired}),
			code:   3, step: doctor.TLS, reason: keyvault.Unreachable, says: "look at this machine's clock first",
		},
		"vault in trouble": {
			change: fault(vault.Fault{Status: 503}),
			code:   3, step: doctor.Token, reason: keyvault.Unreachable, says: "http 503",
		},
		"token refused": {
			change: func(t *testing.T, srv *vault.Server, _ *vault.Vault) {
				require.NoError(t, srv.SetSecrets(srv.ClientID, "another"))
			},
			code: 2, step: doctor.Token, reason: keyvault.CredentialsRefused, says: "AADSTS7000215): aadClientSecret is wrong",
		},
		"sign-in away": {
			change: fault(vault.Fault{Host: "login.microsoftonline.com", Refuse: true}),
			code:   3, step: doctor.Token, reason: keyvault.CredentialsUnavailable, says: "the way to login.microsoftonline.com",
		},
		"denied": {
			change: allow(), code: 2, step: doctor.Encrypt, reason: keyvault.AccessDenied, says: `grant it the key permission "encrypt"`,
		},
		"firewall": {
			change: func(t *testing.T, _ *vault.Server, v *vault.Vault) {
				require.NoError(t, v.SetNetwork(vault.NetworkFirewall))
			},
			code: 2, step: doctor.Attributes, reason: keyvault.NetworkDenied, says: "networking settings",
		},
		"disabled": {
			change: options(vault.KeyOptions{Disabled: true}), args: any,
			code: 2, step: doctor.Validity, reason: keyvault.KeyDisabled, says: "enable this version again",
		},
		"disabled, and no get": {
			change: func(t *testing.T, srv *vault.Server, v *vault.Vault) {
				options(vault.KeyOptions{Disabled: true})(t, srv, v)
				allow(vault.PermEncrypt, vault.PermDecrypt)(t, srv, v)
			},
			args: any, code: 2, step: doctor.Encrypt, reason: keyvault.KeyDisabled, says: "enable this version again",
		},
		"expired": {
			change: options(vault.KeyOptions{Created: time.Now().Add(-time.Hour), Expires: time.Now().Add(-time.Minute)}), args: any,
			code: 1, step: doctor.Validity, reason: keyvault.KeyExpired, says: "change to a new version (az keyvault key rotate",
		},
		"not yet valid": {
			change: options(vault.KeyOptions{NotBefore: time.Now().Add(time.Hour)}), args: newest,
			code: 1, step: doctor.Validity, reason: keyvault.KeyNotYetValid, says: "wait for it",
		},
		"wrong version": {
			args: any, code: 2, step: doctor.Attributes, reason: keyvault.KeyNotFound, says: "the key exists, but not this version",
		},
		"wrong key": {
			args: []string{"--key-name=k2"}, code: 2, step: doctor.Attributes, reason: keyvault.KeyNotFound, says: "check vault, key and version",
		},
		"deleted": {
			change: func(t *testing.T, _ *vault.Server, v *vault.Vault) { require.NoError(t, v.DeleteKey("k1")) },
			code:   2, step: doctor.Attributes, reason: keyvault.KeyDeleted, says: "recover it (az keyvault key recover --vault-name kvlab --name k1)",
		},
		"no get while following": {
			change: allow(vault.PermEncrypt, vault.PermDecrypt), args: newest,
			code: 2, step: doctor.Attributes, reason: keyvault.AccessDenied, says: `"get" is needed to find the newest version`,
		},
		"decrypt denied": {
			change: allow(vault.PermGet, vault.PermEncrypt),
			code:   2, step: doctor.Decrypt, reason: keyvault.AccessDenied, says: `grant it the key permission "decrypt"`,
		},
		"throttled": {
			change: fault(vault.Fault{Op: vault.OpEncrypt, Status: 429, RetryAfter: 20 * time.Second}),
			code:   3, step: doctor.Encrypt, reason: keyvault.Throttled, says: "asks for a pause of 20s",
		},
		// What is no failure.
		"no get": {
			change: allow(vault.PermEncrypt, vault.PermDecrypt),
			code:   0, step: doctor.Attributes, state: doctor.Note, reason: keyvault.AccessDenied, says: "which is optional",
		},
		"expires soon": {
			change: options(vault.KeyOptions{Expires: time.Now().Add(50 * time.Hour)}), args: any,
			code: 1, step: doctor.Validity, state: doctor.Warn, says: "in 2d1h make a new version, or move the expiry date",
		},
		"clock ahead": {
			change: func(_ *testing.T, _ *vault.Server, v *vault.Vault) { v.SetClockSkew(-10 * time.Minute) },
			code:   1, step: doctor.Clock, state: doctor.Warn, says: "ahead of the vault's set the clock",
		},
		"stale socket": {
			args: []string{"--listen-addr=unix://" + staleSocket(t)},
			code: 1, step: doctor.Socket, state: doctor.Warn, says: "which a process left behind start the plugin",
		},
		"no directory": {
			args: []string{"--listen-addr=unix:///nonexistent/dir/k.sock", "--state-dir=/tmp"},
			code: 1, step: doctor.Socket, state: doctor.Warn, says: "no such file or directory make it, or mount it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, v, version := newVault(t, vault.Config{DeleteDelay: -1})
			if tc.change != nil {
				tc.change(t, srv, v)
			}
			env := srv.Env()
			if tc.env != nil {
				env = append(env, tc.env(t)...)
			}
			dir := shortDir(t)
			_, err := srv.AzureJSON(dir)
			require.NoError(t, err)
			args := append([]string{"--output=json"}, tc.args...)
			if !byURL(args) && !strings.Contains(strings.Join(args, " "), "--key-version=") {
				args = append(args, "--key-version="+version)
			}
			code, stdout, stderr := examine(t, dir, env, args...)
			require.Empty(t, stderr)
			require.Equal(t, tc.code, code, stdout)
			r := reported(t, stdout)
			require.Equal(t, tc.code, r.ExitStatus)
			s := stepOf(t, r, tc.step)
			want := tc.state
			if want == "" {
				want = doctor.Fail
			}
			require.Equal(t, want, s.State, stdout)
			require.Equal(t, tc.reason, s.Reason)
			require.Contains(t, s.Text+" "+s.Remedy, tc.says)
			failed := false
			for _, s := range r.Steps {
				switch {
				case s.Name == doctor.Socket:
					require.NotEqual(t, doctor.Skipped, s.State, "it is looked at in any case")
				case failed && !strings.HasPrefix(string(s.Name), "sign-in"):
					require.Equal(t, doctor.Skipped, s.State, s)
				}
				failed = failed || s.State == doctor.Fail
			}
			for op, n := range srv.Calls() {
				require.Contains(t, harmless, op)
				if op == "encrypt" || op == "decrypt" {
					require.LessOrEqual(t, n, 1, op)
				}
			}
			require.Empty(t, srv.Refused())
			require.NotContains(t, stdout, srv.ClientSecret)
		})
	}
}

// staleSocket is what a process leaves behind that is killed.
func staleSocket(t *testing.T) string {
	path := filepath.Join(shortDir(t), "k.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	return path
}

// The way to the sign-in host is shown when there is no token, and only then.
func TestDoctor_SignInHost(t *testing.T) {
	srv, _, version := newVault(t, vault.Config{})
	srv.AddFault(vault.Fault{Host: "login.microsoftonline.com", TLS: vault.TLSUntrusted})
	dir := shortDir(t)
	_, err := srv.AzureJSON(dir)
	require.NoError(t, err)
	code, stdout, _ := examine(t, dir, srv.Env(), "--key-version="+version, "--output=json")
	require.Equal(t, 3, code)
	r := reported(t, stdout)
	require.Equal(t, doctor.OK, stepOf(t, r, doctor.SignInDNS).State)
	require.Equal(t, doctor.OK, stepOf(t, r, doctor.SignInTCP).State)
	s := stepOf(t, r, doctor.SignInTLS)
	require.Equal(t, doctor.Fail, s.State)
	require.Contains(t, s.Text, "not trusted here")
	require.Contains(t, r.Text, `"token"`, "the sign-in host explains it, and is not the step that it ends at")
}

// Another plugin at the socket: with another key, and with the same key that waits for
// the newest version.
func TestDoctor_OtherPlugin(t *testing.T) {
	// Its state file is elsewhere: what is here belongs to doctor's view alone.
	l := startLab(t, nil, nil, "--state-dir="+shortDir(t)).usable(t)
	other := l.rotate(t)
	code, stdout, _ := examine(t, l.dir, l.srv.Env(), "--key-version="+other.Version, "-o", "json")
	require.Equal(t, 1, code, stdout)
	s := stepOf(t, reported(t, stdout), doctor.Socket)
	require.Equal(t, doctor.Warn, s.State)
	require.Contains(t, s.Text, "under key ID "+l.ref().KeyID()+", which is not that of this version, "+other.KeyID())

	code, stdout, _ = examine(t, l.dir, l.srv.Env(), "--key-url="+l.vault.KeyURL("k1", ""), "-o=json")
	require.Equal(t, 0, code, stdout)
	s = stepOf(t, reported(t, stdout), doctor.Socket)
	require.Equal(t, doctor.Note, s.State)
	require.Contains(t, s.Text, "the newest version writes from ")
}

// Proxy mode goes by the forwarding service at every step.
func TestDoctor_ProxyMode(t *testing.T) {
	srv, _, version := newVault(t, vault.Config{})
	args, env := proxyMode(t, srv)
	dir := shortDir(t)
	_, err := srv.AzureJSON(dir)
	require.NoError(t, err)
	connections := srv.Connections()
	code, stdout, _ := examine(t, dir, append(srv.Env(), env...), append(args, "--key-version="+version, "-o=json")...)
	require.Equal(t, 0, code, stdout)
	r := reported(t, stdout)
	require.Contains(t, stepOf(t, r, doctor.DNS).Text, "the forwarding service of --proxy-mode")
	require.Equal(t, doctor.Note, stepOf(t, r, doctor.TLS).State)
	require.Contains(t, stepOf(t, r, doctor.TLS).Text, "http 200")
	require.Equal(t, connections, srv.Connections(), "nothing but the forwarding service was connected to")

	srv.AddFault(vault.Fault{Refuse: true})
	code, stdout, _ = examine(t, dir, append(srv.Env(), env...), append(args, "--key-version="+version, "-o=json")...)
	require.Equal(t, 3, code)
	require.Contains(t, stepOf(t, reported(t, stdout), doctor.TCP).Remedy, "the forwarding service of --proxy-address and --proxy-port runs at 127.0.0.1:")
}

// What serve would not start with ends doctor with the same lines.
func TestDoctor_WrongUse(t *testing.T) {
	dir := shortDir(t)
	config := filepath.Join(dir, "azure.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"aadClientSecret":"SECRETCANARY"`), 0o600))
	for _, args := range [][]string{
		nil, {"--key-version=v1", "--no-such-flag"}, {"--listen-addr=unix:///" + strings.Repeat("x", 200)}, {"--ca-file=/nonexistent"}, {"rubbish"},
	} {
		all := append(append([]string{"--config-file-path=" + config}, goodKey...), args...)
		serveCode, _, serveErr := command(t, all...)
		code, stdout, stderr := command(t, append([]string{"doctor"}, all...)...)
		require.Equal(t, 64, serveCode)
		require.Equal(t, 64, code)
		require.Empty(t, stdout)
		require.NotContains(t, stderr, "CANARY")
		require.Equal(t, serveErr, strings.ReplaceAll(stderr, "see azure-kms-plugin doctor --help", seeHelp))
	}
	code, _, stderr := command(t, append([]string{"doctor", "--output=xml", "--timeout=-1s"}, goodKey...)...)
	require.Equal(t, 64, code)
	require.Contains(t, stderr, `azure-kms-plugin: --output: "xml" is none of table, json`)
	require.Contains(t, stderr, "azure-kms-plugin: --timeout: -1s must be more than 0")
}

// The same with a good azure.json: what is wrong is where the plugin would write and listen.
func TestDoctor_WhatServeDoesNotStartWith(t *testing.T) {
	dir := shortDir(t)
	config := filepath.Join(dir, "azure.json")
	require.NoError(t, os.WriteFile(config, []byte(goodConfig), 0o600))
	base := append([]string{
		"--config-file-path=" + config, "--listen-addr=unix://" + filepath.Join(dir, "k.sock"), "--healthz-port=0", "--metrics-addr=0", "--termination-log=",
	}, goodKey...)
	before := disk(t, dir)
	for _, args := range [][]string{
		{"--status-file=/nosuch/x"},
		{"--status-file=" + config},
		{"--status-file=" + dir},
		{"--termination-log=" + config},
		{"--metrics-addr=192.0.2.1:8095"},
		{"--decrypt-key=https://kvlab.vault.azure.net/keys/k1", "--status-file=/dev/null"},
	} {
		all := append(slices.Clone(base), args...)
		serveCode, _, serveErr := command(t, all...)
		code, stdout, stderr := command(t, append([]string{"doctor"}, all...)...)
		require.Equal(t, 64, serveCode, args)
		require.Equal(t, 64, code, args)
		require.Empty(t, stdout)
		require.Equal(t, serveErr, stderr)
		require.Equal(t, before, disk(t, dir))
	}
}

// What a running plugin holds is no fault: doctor is made to run beside it.
func TestDoctor_BesideAPluginWithTheSameFlags(t *testing.T) {
	dir := shortDir(t)
	args := []string{
		"--healthz-port=" + freePort(t), "--metrics-addr=" + freePort(t), "--status-file=" + filepath.Join(dir, "status.json"), "--key-version=",
	}
	srv, _, version := newVault(t, vault.Config{})
	_, err := srv.AzureJSON(dir)
	require.NoError(t, err)
	args[3] += version
	prepare(t, dir, srv.Env(), args...).start(t).serving(t)
	p := prepare(t, dir, srv.Env(), append(args, "--output=json")...)
	p.cmd.Args = append([]string{p.cmd.Args[0], "doctor"}, p.cmd.Args[1:]...)
	var out bytes.Buffer
	p.cmd.Stdout = &out
	require.NoError(t, p.cmd.Run(), p.stderr)
	require.Equal(t, doctor.OK, stepOf(t, reported(t, out.String()), doctor.Socket).State)
}

// It ends when its time is up, whatever does not answer.
func TestDoctor_Timeout(t *testing.T) {
	srv, _, version := newVault(t, vault.Config{})
	srv.AddFault(vault.Fault{Op: vault.OpDecrypt, Hang: true})
	dir := shortDir(t)
	_, err := srv.AzureJSON(dir)
	require.NoError(t, err)
	code, stdout, _ := examine(t, dir, srv.Env(), "--key-version="+version, "--timeout=2s", "-o=json")
	require.Equal(t, 3, code)
	s := stepOf(t, reported(t, stdout), doctor.Decrypt)
	require.Equal(t, doctor.Fail, s.State)
	require.Equal(t, keyvault.Unreachable, s.Reason)
	require.Equal(t, keyvault.CauseTimeout, s.Cause)
}

func TestDoctor_Help(t *testing.T) {
	for _, args := range [][]string{{"doctor", "-h"}, {"doctor", "--key-name=x", "--help"}} {
		code, stdout, stderr := command(t, args...)
		require.Equal(t, 0, code)
		require.Empty(t, stderr)
		golden(t, "help-doctor.txt", stdout)
	}
}
