package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/keyvault"
)

// A variable that Go would silently ignore, or that would show secrets, keeps
// the program from starting. The fault names the variable and not its value.
func TestEnvironment_Faults(t *testing.T) {
	cfg := filepath.Join(t.TempDir(), "azure.json")
	require.NoError(t, os.WriteFile(cfg, []byte(goodConfig), 0o600))
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "GODEBUG"} {
		t.Setenv(name, "")
	}
	for _, tc := range []struct{ name, value string }{
		{"HTTPS_PROXY", "http://user:PROXY%zzCANARY@h"},
		{"https_proxy", "http://user:PROXYCANARY@h:port"},
		{"HTTP_PROXY", "ftp://user:PROXYCANARY@h"},
		{"http_proxy", "http://user:PROXYCANARY@"},
		{"HTTPS_PROXY", "h:99999/CANARY"},
		{"NO_PROXY", "10.0.0.0/99,CANARY"},
		{"no_proxy", "a.example CANARY.example"},
		{"NO_PROXY", "http://CANARY.example"},
		{"GODEBUG", "madvdontneed=1,http2debug=2"},
	} {
		t.Run(tc.name+"="+tc.value, func(t *testing.T) {
			t.Setenv(tc.name, tc.value)
			var stdout, stderr bytes.Buffer
			args := append([]string{"--config-file-path=" + cfg, "--v=x"}, goodKey...) // one more fault: it must not serve
			require.Equal(t, 64, run(t.Context(), nil, args, &stdout, &stderr))
			require.Contains(t, stderr.String(), "azure-kms-plugin: "+tc.name+": ")
			require.Equal(t, 3, strings.Count(stderr.String(), "\n"), "with where to find help")
			require.NotContains(t, stderr.String(), "CANARY")
			require.Equal(t, 0, run(t.Context(), nil, []string{"--version"}, &stdout, &stderr))
		})
	}
}

// What is likely a mistake, but may be meant, is said and does no more.
func TestLocalWarnings(t *testing.T) {
	dir := t.TempDir()
	cfg := filepath.Join(dir, "azure.json")
	require.NoError(t, os.WriteFile(cfg, []byte(goodConfig), 0o640))
	t.Setenv("SSL_CERT_FILE", "")
	of := func(text string) []string {
		require.NoError(t, os.WriteFile(cfg, []byte(text), 0o640))
		azure, err := keyvault.ReadConfig(cfg)
		require.NoError(t, err)
		return localWarnings(options{configFile: cfg}, azure)
	}
	const secret = `{"tenantId":"t","aadClientId":"c","aadClientSecret":"s"}`
	require.Empty(t, of(secret))

	require.NoError(t, os.Chmod(cfg, 0o644))
	warnings := of(secret)
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "mode 0644")
	require.Empty(t, of(`{"useManagedIdentityExtension":true}`), "it holds no secret")

	require.NoError(t, os.Chmod(cfg, 0o600))
	warnings = of(`{"tenantId":"t","aadClientId":"c","aadClientSecret":"s","aadClientCertPath":"/c.pem"}`)
	require.Equal(t, []string{cfg + ": aadClientCertPath is not used: aadClientSecret is there and comes first"}, warnings)

	t.Setenv("SSL_CERT_FILE", filepath.Join(dir, "gone.pem"))
	warnings = of(secret)
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "SSL_CERT_FILE: ")

	t.Setenv("SSL_CERT_FILE", "")
	for _, wrong := range []string{filepath.Join(dir, "gone"), cfg} {
		azure, err := keyvault.ReadConfig(cfg)
		require.NoError(t, err)
		require.Empty(t, localWarnings(options{configFile: cfg, stateDir: dir}, azure))
		warnings = localWarnings(options{configFile: cfg, stateDir: wrong}, azure)
		require.Contains(t, strings.Join(warnings, "\n"), "--state-dir: no file can be made in "+wrong+" (n")
	}

	// A host of no cloud is for those that this program does not know, and for typing errors.
	azure, err := keyvault.ReadConfig(cfg)
	require.NoError(t, err)
	for host, odd := range map[string]bool{
		"KvLab.vault.azure.net": false, "h.managedhsm.usgovcloudapi.net": false, "kvlab.vault.azure.cn": false,
		"example.com": true, "kvlab.privatelink.vaultcore.azure.net": true, "kvlab.vault.azure.com": true, "vault.azure.net": true,
	} {
		ref := keyvault.Ref{Host: host, Name: "k1"}
		for flag, o := range map[string]options{"--key-url": {keyURL: ref}, "--decrypt-key": {decryptKeys: []keyvault.Ref{ref}}} {
			o.configFile, o.stateDir = cfg, dir
			warnings := localWarnings(o, azure)
			if !odd {
				require.Empty(t, warnings, host)
				continue
			}
			require.Len(t, warnings, 1, host)
			require.True(t, strings.HasPrefix(warnings[0], flag+": "+host+" is in no cloud"), warnings[0])
		}
	}

	o, faults := parse(append([]string{"--proxy-address=relay.example"}, goodKey...))
	require.Empty(t, faults)
	require.Contains(t, strings.Join(o.warnings, "\n"), "--proxy-mode is not on")
}

func TestEnvironment_Good(t *testing.T) {
	for _, s := range []string{
		"", "http://h", "http://user:p%25@h:3128", "https://h:1/", "socks5://h:1", "socks5h://[::1]:1080", "h:3128", "h", "user:pw@h:1", "127.0.0.1:1",
	} {
		require.True(t, isProxy(s), s)
	}
	for _, s := range []string{"", "*", "a.example, .b.example,10.0.0.0/8,,fd00::/8,127.0.0.1:80,::1"} {
		require.True(t, isNoProxy(s), s)
	}
}

// A port that cannot be had says what to do about it.
func TestListen_Faults(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	l, faults := listen(options{healthzAddr: ln.Addr().String(), metricsAddr: "192.0.2.1:0"})
	defer l.close()
	require.Len(t, faults, 2)
	require.Regexp(t, `^--healthz-port: port \d+ cannot be listened on: .*in use; another process has it, .* give another port, or 0 for none$`, faults[0])
	require.Regexp(t, `^--metrics-addr: port 0 cannot .*; this machine has no such address: `, faults[1])
}
