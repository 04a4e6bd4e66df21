package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const v1 = "0123456789abcdef0123456789abcdef"

// triplet is a key that nothing is wrong with.
var goodKey = []string{"--keyvault-name=kvlab", "--key-name=k1", "--key-version=" + v1}

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"--help"}, {"help"}, {"serve", "-h"}, {"--nope", "-h"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(context.Background(), nil, args, &stdout, &stderr))
		require.Empty(t, stderr.String())
		golden(t, "help.txt", stdout.String())
	}
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"-version"}, {"--version"}, {"--version=true", "--v=9"}, {"serve", "--version"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(context.Background(), nil, args, &stdout, &stderr), args)
		require.Empty(t, stderr.String())
		require.Regexp(t, `^azure-kms-plugin \S+ \(revision \S+, go1\.\S+.*, linux/\S+, FIPS 140-3 \S+\)\n$`, stdout.String())
	}
}

// Every fault of a command line is told at once, on a line that names its flag,
// and nothing else is.
func TestFaults(t *testing.T) {
	cfg := filepath.Join(t.TempDir(), "azure.json")
	require.NoError(t, os.WriteFile(cfg, []byte(`{"tenantId":"11111111-2222-3333-4444-555555555555","aadClientId":"66666666-2222-3333-4444-555555555555","aadClientSecret":"SECRETCANARY"}`), 0o600))
	base := append([]string{"--config-file-path=" + cfg, "--healthz-port=0", "--metrics-addr=0", "--termination-log="}, goodKey...)
	with := func(args ...string) []string { return append(append([]string{}, base...), args...) }
	keyless := []string{"--config-file-path=" + cfg, "--healthz-port=0", "--metrics-addr=0", "--termination-log="}

	var out strings.Builder
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"no key", keyless},
		{"unknown command", []string{"sevre"}},
		{"version with arguments", []string{"version", "--v=1"}},
		{"positional rubbish", with("rubbish", "-v=1", "more")},
		{"a switch with a value apart", with("--managed-hsm", "true", "-log-format-json", "false", "--managed-hsm=true", "true", "--managed-hsm", "name")},
		{"unknown flag with its value", with("--no-such-flag", "PWCANARY")},
		{"unknown flag with equals", with("--client-secret=PWCANARY")},
		{"value missing", with("--socket-group")},
		{"bad syntax", with("---x=PWCANARY")},
		{"many at once", []string{
			"--keyvault-name=", "--key-name=../secrets/s1", "--key-version", "v1", "--v=loud", "--healthz-port=70000",
			"--healthz-timeout=soon", "--managed-hsm=maybe", "--metrics-backend=statsd", "--metrics-addr=here", "--config-file-path=" + cfg, "--bogus",
		}},
		{"C01 empty after trimming", append(keyless, `--keyvault-name=" "`, "--key-name=\t\"\"", "--key-version=\" \r\n\"")},
		{"C01 single quotes", append(keyless, "--keyvault-name='kvlab'", "--key-name='k1'", "--key-version='"+v1+"'")},
		{"C01 length after trimming", append(keyless, `--keyvault-name="kv"`, "--key-name=k1", "--key-version="+v1)},
		{"vault name too long", append(keyless, "--keyvault-name=abcdefghijklmnopqrstuvwxy", "--key-name=k1", "--key-version="+v1)},
		{"vault name with dashes around it", append(keyless, "--keyvault-name=-a-", "--key-name=k1", "--key-version="+v1)},
		{"vault name with a dot", append(keyless, "--keyvault-name=kv.lab", "--key-name=k1", "--key-version="+v1)},
		{"C10 names with a slash", append(keyless, "--keyvault-name=kvlab", "--key-name=k1/V0", "--key-version="+v1+"/..")},
		{"C10 percent", append(keyless, "--keyvault-name=kvlab", "--key-name=k1%2f..", "--key-version=..")},
		{"C10 underscore", append(keyless, "--keyvault-name=kvlab", "--key-name=k_1", "--key-version=0123")},
		{"C10 query", append(keyless, "--keyvault-name=kvlab", "--key-name=k1?x=1", "--key-version="+v1)},
		{"C10 letters", append(keyless, "--keyvault-name=kvlab", "--key-name=ключ", "--key-version="+v1)},
		{"C10 128 characters", append(keyless, "--keyvault-name=kvlab", "--key-name="+strings.Repeat("k", 128), "--key-version="+v1)},
		{"key version present but empty", append(keyless, "--keyvault-name=kvlab", "--key-name=k1", "--key-version=")},
		{"a pace that leaves no time", append(keyless, "--keyvault-name=kvlab", "--key-name=k1", "--poll-interval=2m")},
		{"a pace too fast", append(keyless, "--keyvault-name=kvlab", "--key-name=k1", "--poll-interval=10ms", "--activation-delay=-3m")},
		{"a pace for a Managed HSM", append(keyless, "--keyvault-name=kvlab", "--key-name=k1", "--managed-hsm", "--poll-interval=8m")},
		{"key URL and names", with("--managed-hsm", "--key-url=https://kvlab.vault.azure.net/keys/k1/"+v1)},
		{"key URL of a vault and Managed HSM", append(keyless, "--managed-hsm", "--key-url=https://kvlab.vault.azure.net/keys/k1")},
		{"key URL of a Managed HSM and none", append(keyless, "--managed-hsm=false", "--key-url=https://kvhsm.managedhsm.azure.net/keys/k1")},
		{"key URL of a Managed HSM and one", append(keyless, "--managed-hsm", "--key-url=https://kvhsm.managedhsm.azure.net/keys/k1")},
		{"key URL without version, and a pace", append(keyless, "--key-url=https://kvlab.vault.azure.net/keys/k1", "--activation-delay=30s", "--poll-interval=fast")},
		{"key URL with a password", append(keyless, "--key-url=https://u:PWCANARY@kvlab.vault.azure.net/keys/k1/"+v1)},
		{"key URL with a token", append(keyless, "--key-url=https://kvlab.vault.azure.net/keys/k1/"+v1+"?sig=PWCANARY")},
		{"not a key URL", append(keyless, "--key-url=kvlab")},
		{"another cloud", append(keyless, "--key-url=https://kvlab.vault.azure.cn/keys/k1", "--decrypt-key=https://kvhsm.managedhsm.usgovcloudapi.net/keys/k1")},
		{"no time at all", with("--healthz-timeout=0s")},
		{"graces", with("--outage-grace=-1s", "--denial-grace=soon")},
		{"a grace without unit", with("--outage-grace=86400", "--denial-grace=")},
		{"a grace of weeks", with("--outage-grace=169h", "--denial-grace=168h1s")},
		{"decrypt keys", with("--decrypt-key=", "--decrypt-key=http://kvlab.vault.azure.net/keys/k1", "--decrypt-key=https://kvlab.vault.azure.net/secrets/s1")},
		{"choices", with("--key-operations=sign", "--ciphertext-format=aws", "--kms-api-version=v1", "--healthz-mode=deep")},
		{"socket mode for all", with("--socket-mode=0666")},
		{"socket mode without owner", with("--socket-mode=0060")},
		{"socket mode not octal", with("--socket-mode=rw")},
		{"socket group", with("--socket-group=nobody-has-this-one")},
		{"listen address", with("--listen-addr=tcp://127.0.0.1:9000")},
		{"same port twice", append(with(), "--healthz-port=8095", "--metrics-addr=127.0.0.1:8095")},
		{"healthz path", with("--healthz-path=healthz")},
		{"healthz path with a dot", with("--healthz-path=/./healthz")},
		{"healthz path with dots", with("--healthz-path=/a/../healthz")},
		{"healthz path with an empty part", with("--healthz-path=/a//b")},
		{"healthz path with a tab", with("--healthz-path=/a\tb")},
		{"healthz path of another", with("--healthz-path=/livez")},
		{"status file without a directory", with("--status-file=/nonexistent/kms/status.json")},
		{"status file that is a directory", with("--status-file=/dev/")},
		{"status file that is a device", with("--status-file=/dev/null")},
		{"status file below a file", with("--status-file=/dev/null/status.json")},
		{"status file at the socket's place", with("--listen-addr=unix:///dev/kms.sock", "--status-file=/dev//kms.sock")},
		{"status file at the place of azure.json", with("--status-file=" + cfg)},
		{"status file of no fixed place", with("--status-file=status.json")},
		{"status file with an empty name", with("--status-file=")},
		{"proxy without address", with("--proxy-mode")},
		{"proxy with a password", with("--proxy-mode", "--proxy-address=http://u:PWCANARY@proxy")},
		{"proxy address with a port", with("--proxy-mode", "--proxy-address=proxy:8080")},
		{"proxy address in brackets", with("--proxy-mode", "--proxy-address=[::1]")},
		{"proxy address in brackets with a port", with("--proxy-mode", "--proxy-address=[::1]:8080")},
		{"proxy address of neither kind", with("--proxy-mode", "--proxy-address=a:b:c")},
		{"help that is neither", with("--help=perhaps")},
		{"help that is switched off", with("--help=false", "--v=x")},
		{"proxy port", with("--proxy-mode", "--proxy-address=proxy", "--proxy-port=0")},
		{"no config file", append([]string{"--config-file-path=/nonexistent/azure.json", "--v=x"}, goodKey...)},
		{"no CA file", with("--ca-file=/nonexistent/ca.pem")},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), nil, tc.args, &stdout, &stderr)
		require.Equal(t, 64, code, "%s: %s", tc.name, stderr.String())
		require.Empty(t, stdout.String(), tc.name)
		for line := range strings.Lines(stderr.String()) {
			require.True(t, strings.HasPrefix(line, "azure-kms-plugin: "), "%s: %s", tc.name, line)
		}
		out.WriteString("# " + tc.name + "\n" + stderr.String() + "\n")
	}
	got := strings.ReplaceAll(out.String(), cfg, "azure.json")
	got = strings.ReplaceAll(got, fmt.Sprintf("uid %d, gid %d", os.Geteuid(), os.Getegid()), "uid U, gid G")
	require.NotContains(t, got, "CANARY")
	golden(t, "faults.txt", got)
}

// C01: what templates leave around a value is not part of it.
func TestClean(t *testing.T) {
	for _, v := range []string{
		v1, " " + v1 + " ", v1 + "\n", v1 + "\r\n", `"` + v1 + `"`, "\"" + v1 + "\n\"", " \"\t\" " + v1 + "\"\n\" ",
	} {
		o, faults := parse([]string{"--keyvault-name=\" kvlab\"\n", "--key-name=' k1 '"[:11] + " k1 ", "--key-version=" + v})
		require.Empty(t, faults, "%q", v)
		require.Equal(t, "kvlab", o.vault)
		require.Equal(t, "k1", o.keyName)
		require.Equal(t, v1, o.keyVersion)
	}
}

func TestDefaults(t *testing.T) {
	o, faults := parse(goodKey)
	require.Empty(t, faults)
	require.Empty(t, o.warnings)
	require.Equal(t, "/etc/kubernetes/azure.json", o.configFile)
	require.Equal(t, "unix:///opt/azurekms.socket", o.listenAddr)
	require.Zero(t, o.socketMode, "the plugin's default")
	require.Equal(t, ":8787", o.healthzAddr)
	require.Equal(t, "/healthz", o.healthzPath)
	require.Equal(t, "20s", o.healthzTimeout.String())
	require.Equal(t, ":8095", o.metricsAddr)
	require.Equal(t, "azure", o.format.String())
	require.Equal(t, "v2beta1", o.apiVersion)
	require.False(t, o.followKey)
	require.False(t, o.wrap)
	require.Nil(t, o.proxy())
	require.Equal(t, "/opt", o.memoryDir())
	require.Empty(t, o.statusFile)
	require.Equal(t, "/dev/termination-log", o.terminationLog)
	require.Equal(t, health.Graces{Outage: 24 * time.Hour, Denial: 10 * time.Minute}, o.graces())
}

// No grace at all is not the default, as zero is in package health.
func TestGraces(t *testing.T) {
	for _, zero := range []string{"0", "0s", " 0h\n"} {
		o, faults := parse(append([]string{"--outage-grace=" + zero, "--denial-grace=" + zero}, goodKey...))
		require.Empty(t, faults, zero)
		require.Negative(t, o.graces().Outage, zero)
		require.Negative(t, o.graces().Denial, zero)
		require.Negative(t, o.graces().KeyState, "%s: a disabled key is graver than a refusal", zero)
	}
	o, faults := parse(append([]string{"--outage-grace=168h", "--denial-grace=1h30m"}, goodKey...))
	require.Empty(t, faults)
	require.Equal(t, health.Graces{Outage: 7 * 24 * time.Hour, Denial: 90 * time.Minute}, o.graces())
	o, _ = parse(append([]string{"--denial-grace=5s"}, goodKey...))
	require.Equal(t, 5*time.Second, o.graces().KeyState)
}

// HyperShift's arguments, to the letter.
func TestHyperShift(t *testing.T) {
	o, faults := parse([]string{
		"--keyvault-name=kvlab", "--key-name=k1", "--key-version=" + v1,
		"--listen-addr=unix:///opt/azurekmsactive.socket", "--healthz-port=8787", "--metrics-addr=8095",
		"--healthz-path=/healthz", "--config-file-path=/etc/kubernetes/azure.json", "-v=1", "--managed-hsm",
	})
	require.Empty(t, faults)
	require.Empty(t, o.warnings)
	require.True(t, o.managedHSM)
	require.Equal(t, 1, o.verbosity)
	require.Equal(t, "unix:///opt/azurekmsactive.socket", o.listenAddr)
	require.Equal(t, ":8787", o.healthzAddr)
	require.Equal(t, ":8095", o.metricsAddr)
}

func TestFlagForms(t *testing.T) {
	for name, args := range map[string][]string{
		"one dash":       {"-keyvault-name=kvlab", "-key-name=k1", "-key-version=" + v1, "-v=4"},
		"separate value": {"--keyvault-name", "kvlab", "-key-name", "k1", "--key-version", v1, "-v", "4"},
		"the last wins":  {"--keyvault-name=other", "--v=1", "--keyvault-name=kvlab", "--key-name=k1", "--key-version=" + v1, "--v=4"},
	} {
		o, faults := parse(args)
		require.Empty(t, faults, name)
		require.Equal(t, "kvlab", o.vault, name)
		require.Equal(t, 4, o.verbosity, name)
	}
	o, faults := parse([]string{
		"--key-url=https://KvLab.vault.azure.net/keys/k1/" + v1,
		"--decrypt-key=https://kvold.vault.azure.net/keys/k0", "--decrypt-key", "https://kvold.vault.azure.net/keys/k1/" + v1,
	})
	require.Empty(t, faults)
	require.Equal(t, "https://KvLab.vault.azure.net/keys/k1/"+v1, o.keyURL.URL(), "the key ID is hashed from the spelling")
	require.Len(t, o.decryptKeys, 2)
}

func TestMetricsAddr(t *testing.T) {
	for in, want := range map[string]string{
		"8095": ":8095", ":8095": ":8095", "127.0.0.1:9": "127.0.0.1:9", "[::1]:9": "[::1]:9", "0": "", `"0"`: "", "localhost:0": "localhost:0",
	} {
		o, faults := parse(append([]string{"--metrics-addr=" + in}, goodKey...))
		require.Empty(t, faults, in)
		require.Equal(t, want, o.metricsAddr, in)
	}
	for _, in := range []string{"", "x", "99999", ":", "a:b:c", "-1"} {
		_, faults := parse(append([]string{"--metrics-addr=" + in}, goodKey...))
		require.Len(t, faults, 1, in)
	}
}

// C06: the old flag for the file is honoured, and says so.
func TestConfigFileFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
		warn string
	}{
		{[]string{"--configFilePath=/a"}, "/a", "deprecated: write --config-file-path"},
		{[]string{"--configFilePath=/a", "--config-file-path=/b"}, "/b", "deprecated and not used"},
		{[]string{"--config-file-path=/b"}, "/b", ""},
	} {
		o, faults := parse(append(tc.args, goodKey...))
		require.Empty(t, faults)
		require.Equal(t, tc.want, o.configFile)
		if tc.warn == "" {
			require.Empty(t, o.warnings)
		} else {
			require.Len(t, o.warnings, 1)
			require.Contains(t, o.warnings[0], tc.warn)
		}
	}
}

func TestKlogFlags(t *testing.T) {
	o, faults := parse(append([]string{
		"--logtostderr", "--alsologtostderr=false", "-skip_headers=true", "--vmodule=a=1", "--stderrthreshold", "2", "--log_file_max_size=9",
	}, goodKey...))
	require.Empty(t, faults)
	require.Len(t, o.warnings, 1)
	require.Equal(t, "logging flags of klog are ignored: --alsologtostderr, --log_file_max_size, --logtostderr, --skip_headers, --stderrthreshold, --vmodule", o.warnings[0])
}

func TestMemoryDir(t *testing.T) {
	for want, args := range map[string][]string{
		"/run/kms": {"--listen-addr=unix:///run/kms/k.sock"},
		"":         {"--listen-addr=unix:///@kms"},
		"/state":   {"--listen-addr=unix:///@kms", "--state-dir=/state"},
	} {
		o, faults := parse(append(args, goodKey...))
		require.Empty(t, faults)
		require.Equal(t, want, o.memoryDir())
	}
}

// The page on configuration names every flag, with its default, and no other.
func TestFlagsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `--([A-Za-z0-9-]+)` \\|([^|]*)\\|").FindAllStringSubmatch(string(page), -1) {
		documented[row[1]] = strings.Trim(row[2], "` ")
	}
	for _, g := range flagGroups {
		for _, f := range g.flags {
			def, ok := documented[f.name]
			require.True(t, ok, "--%s is not on the page", f.name)
			if f.def != "" {
				require.Equal(t, f.def, def, "--%s", f.name)
			}
			delete(documented, f.name)
		}
	}
	require.Empty(t, documented, "the page has flags that there are not")
}

func TestProxyAddress(t *testing.T) {
	for _, address := range []string{"proxy", "proxy.example.", "10.0.0.1", "::1", "fe80::1%eth0", "a_b"} {
		o, faults := parse(append([]string{"--proxy-mode", "--proxy-address=" + address}, goodKey...))
		require.Empty(t, faults, address)
		require.Equal(t, address, o.proxyAddress)
	}
}

func TestHealthzPath(t *testing.T) {
	for _, path := range []string{"/", "/healthz", "/a/b", "/a/", "/.well-known/x"} {
		o, faults := parse(append([]string{"--healthz-path=" + path}, goodKey...))
		require.Empty(t, faults, path)
		require.Empty(t, o.warnings, path)
	}
	o, faults := parse(append([]string{"--healthz-path=/status"}, goodKey...))
	require.Empty(t, faults, "a manifest that probes it goes on working")
	require.Len(t, o.warnings, 1)
	require.Contains(t, o.warnings[0], "--healthz-path=/status takes the place of the status document")
}
