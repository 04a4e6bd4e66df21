package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/vault"
)

func in3s(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// encrypt and decrypt call as kube-apiserver does.
func (l *lab) encrypt(t *testing.T, plaintext []byte) *kmsapi.EncryptResponse {
	t.Helper()
	e, err := l.client(t).Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: plaintext, Uid: "u"})
	require.NoError(t, err)
	return e
}

func decryptOf(e *kmsapi.EncryptResponse) *kmsapi.DecryptRequest {
	return proto.Clone(&kmsapi.DecryptRequest{Ciphertext: e.Ciphertext, KeyId: e.KeyId, Annotations: e.Annotations, Uid: "u"}).(*kmsapi.DecryptRequest)
}

// usable waits for the first probe, so that its calls are not counted among a test's.
func (l *lab) usable(t *testing.T) *lab {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(l.stderr.String(), "key is usable") }, patience, time.Millisecond)
	return l
}

// C02 (b): the directory gets the secret as it was meant, character by character.
func TestServe_SecretAsWritten(t *testing.T) {
	srv, v, version := newVault(t, vault.Config{ClientSecret: `a"b\c+d&e=f%20 ~`})
	dir := shortDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "azure.json"), []byte(
		`{"tenantId":"`+srv.TenantID+`","aadClientId":"`+srv.ClientID+`","aadClientSecret":"a\"b\\c+d&e=f%20 ~"}`), 0o600))
	p := prepare(t, dir, srv.Env(), "--key-version="+version).start(t).serving(t)
	(&lab{process: p, srv: srv, vault: v, version: version}).roundTrip(t)
}

// C09: vault, audience and sign-in host of a cloud go together.
func TestServe_Clouds(t *testing.T) {
	for name, c := range map[string]struct{ vault, hsm, login string }{
		"":                       {"vault.azure.net", "managedhsm.azure.net", "login.microsoftonline.com"},
		"AZUREPUBLICCLOUD":       {"vault.azure.net", "managedhsm.azure.net", "login.microsoftonline.com"},
		"AzureCloud":             {"vault.azure.net", "managedhsm.azure.net", "login.microsoftonline.com"},
		"AzureUSGovernmentCloud": {"vault.usgovcloudapi.net", "managedhsm.usgovcloudapi.net", "login.microsoftonline.us"},
		"AzureUSGovernment":      {"vault.usgovcloudapi.net", "managedhsm.usgovcloudapi.net", "login.microsoftonline.us"},
		"AzureChinaCloud":        {"vault.azure.cn", "managedhsm.azure.cn", "login.chinacloudapi.cn"},
	} {
		for _, suffix := range []string{c.vault, c.hsm} {
			t.Run(name+" "+suffix, func(t *testing.T) {
				srv, _, _ := newVault(t, vault.Config{})
				v, err := srv.VaultAt("kvcloud." + suffix)
				require.NoError(t, err)
				version, err := v.CreateKey("k1", vault.KeyOptions{})
				require.NoError(t, err)
				dir := shortDir(t)
				cfg, err := json.Marshal(map[string]string{"cloud": name, "tenantId": srv.TenantID, "aadClientId": srv.ClientID, "aadClientSecret": srv.ClientSecret})
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "azure.json"), cfg, 0o600))
				p := prepare(t, dir, srv.Env(), "--keyvault-name=kvcloud", "--key-version="+version, "--managed-hsm="+strconv.FormatBool(suffix == c.hsm)).start(t).serving(t)
				(&lab{process: p, srv: srv, vault: v, version: version}).roundTrip(t)
				for _, r := range srv.Requests() {
					require.Contains(t, []string{v.Host(), c.login}, r.Host)
					if r.Op == vault.OpToken {
						require.Equal(t, "https://"+suffix, r.Audience)
					}
				}
				require.Empty(t, srv.Refused())
			})
		}
	}
}

// S02: the second plugin, with another version of the key, does not get the socket.
func TestServe_LiveSocketIsKept(t *testing.T) {
	l := startLab(t, nil, nil)
	v2, err := l.vault.CreateKey("k1", vault.KeyOptions{})
	require.NoError(t, err)
	l.roundTrip(t)
	before, err := os.Lstat(l.socket)
	require.NoError(t, err)
	for _, state := range []string{"running", "stopped"} {
		if state == "stopped" { // not answering is not dead
			require.NoError(t, l.cmd.Process.Signal(syscall.SIGSTOP))
		}
		b := prepare(t, l.dir, l.srv.Env(), "--key-version="+v2).start(t)
		require.Equal(t, 64, b.exit(t))
		require.Contains(t, b.stderr.String(), l.socket)
		require.NoError(t, l.cmd.Process.Signal(syscall.SIGCONT))
	}
	after, err := os.Lstat(l.socket)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	l.roundTrip(t) // and its ID is that of l.version
}

// S07 (a): a vault that answers after a minute keeps neither the socket nor Status
// waiting, but the first one for a moment.
func TestServe_SlowVault(t *testing.T) {
	srv, _, version := newVault(t, vault.Config{})
	for _, op := range []vault.Op{"", vault.OpToken, vault.OpChallenge} {
		srv.AddFault(vault.Fault{Op: op, Delay: time.Minute})
	}
	dir := shortDir(t)
	_, err := srv.AzureJSON(dir)
	require.NoError(t, err)
	p := prepare(t, dir, srv.Env(), "--key-version="+version).start(t)
	require.Eventually(t, func() bool {
		c, err := net.Dial("unix", p.socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, patience, time.Millisecond)
	for range 3 {
		_, err = p.status(t)
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	}
}

// S07 (b): clients find the socket again, and nobody who is connected notices.
func TestServe_SocketDeleted(t *testing.T) {
	l := startLab(t, nil, nil)
	client := l.client(t)
	_, err := client.Status(in3s(t), &kmsapi.StatusRequest{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the watcher may be quicker than the probe
		require.NoError(t, os.Remove(l.socket))
		_, body := get(t, l.health+"/healthz")
		seen := strings.Contains(body, l.socket+" was deleted")
		require.Eventually(t, func() bool {
			code, _ := get(t, l.health+"/healthz")
			return code == 200
		}, patience, 5*time.Millisecond)
		return seen
	}, patience, time.Millisecond)
	l.roundTrip(t)
	_, err = client.Status(in3s(t), &kmsapi.StatusRequest{})
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), mode(t, l.socket))
}

func mode(t *testing.T, path string) os.FileMode {
	fi, err := os.Lstat(path)
	require.NoError(t, err)
	return fi.Mode().Perm()
}

// S08: the flags for the socket file reach it, whatever the umask.
func TestServe_SocketFlags(t *testing.T) {
	group := strconv.Itoa(os.Getegid())
	if os.Geteuid() == 0 {
		group = "4711"
	}
	for _, umask := range []int{0o077, 0} {
		for _, c := range []struct {
			args []string
			mode os.FileMode
			gid  string
		}{
			{nil, 0o600, strconv.Itoa(os.Getegid())},
			{[]string{"--socket-mode=0660"}, 0o660, strconv.Itoa(os.Getegid())},
			{[]string{"--socket-group=" + group}, 0o660, group},
			{[]string{"--socket-group=" + group, "--socket-mode=0600"}, 0o600, group},
		} {
			p := prepare(t, shortDir(t), nil, c.args...)
			old := syscall.Umask(umask)
			p.start(t)
			syscall.Umask(old)
			p.serving(t)
			fi, err := os.Lstat(p.socket)
			require.NoError(t, err)
			require.Equal(t, c.mode, fi.Mode().Perm(), "umask %o %v", umask, c.args)
			require.Equal(t, c.gid, fmt.Sprint(fi.Sys().(*syscall.Stat_t).Gid), "umask %o %v", umask, c.args)
		}
	}
}

// D02: a signal at the very moment at which the socket appears. The moments of
// TestStop_DuringStart may all lie before the program's first line on a slow machine.
func TestStop_AtTheBinding(t *testing.T) {
	for range 10 {
		p := prepare(t, shortDir(t), nil).start(t)
		require.Eventually(t, func() bool { _, err := os.Lstat(p.socket); return err == nil }, patience, 50*time.Microsecond)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 0, p.exit(t), p.stderr)
		require.NoFileExists(t, p.socket)
		require.NotContains(t, p.stderr.String(), "panic")
	}
}
