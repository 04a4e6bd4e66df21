package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/status"
)

// What is not where it belongs is said in one line, and nothing else.
func TestFaults_Misplaced(t *testing.T) {
	late := func(command string) string {
		return "azure-kms-plugin: the command comes first: azure-kms-plugin " + command + " [flags]\n"
	}
	const (
		asked    = "azure-kms-plugin: doctor takes no argument; did you mean status?\nazure-kms-plugin: see azure-kms-plugin doctor --help\n"
		seeUsage = "azure-kms-plugin: see azure-kms-plugin status --help\n"
	)
	for args, want := range map[string]string{
		"--output=json status":              late("status"),
		"--output json status":              late("status"),
		"-o json doctor --key-name=k1":      late("doctor"),
		"--json status":                     late("status"),
		"--managed-hsm true doctor":         late("doctor"),
		"--v 1 --key-name k1 serve":         late("serve"),
		"doctor 127.0.0.1:8787":             asked,
		"doctor --key-name k1 -o json 8787": asked,
		"status --healthz-port=8788":        "azure-kms-plugin: --healthz-port: give it as an argument, as in azure-kms-plugin status 127.0.0.1:8787\n" + seeUsage,
		"status --status-file /run/st.json": "azure-kms-plugin: --status-file: give it as an argument, as in azure-kms-plugin status /run/azure-kms/status.json\n" + seeUsage,
		"status unix:///opt/azurekms.socket": "azure-kms-plugin: an argument is the KMS socket, which has no status document: give the host and the --healthz-port, " +
			"as in 127.0.0.1:8787, or the file of --status-file\n" + seeUsage,
	} {
		code, stdout, stderr := command(t, strings.Fields(args)...)
		require.Equal(t, 64, code, args)
		require.Empty(t, stdout, args)
		require.Equal(t, want, stderr, args)
	}
}

// A key may be called as a command is, and a flag may have its value apart.
func TestStray(t *testing.T) {
	for args, want := range map[string][]string{
		"":                                     nil,
		"--key-name status --keyvault-name x":  nil,
		"--key-name=status doctor":             {"doctor"},
		"-logtostderr --vmodule a version":     {"version"},
		"--unknown value more":                 {"more"},
		"--unknown --version=false":            nil,
		"--log-format-json false --v 4":        nil,
		"--managed-hsm name -h status --":      {"name", "status"},
		"--timeout=3s 127.0.0.1:8787 --output": {"127.0.0.1:8787"},
	} {
		require.Equal(t, want, stray(strings.Fields(args)), args)
	}
	require.Nil(t, stray([]string{"--output", "json"}, doctorFlags...))
}

// A port alone is one of this machine.
func TestStatus_PortAlone(t *testing.T) {
	_, port, err := net.SplitHostPort(strings.TrimPrefix(teller(t, 200, told("node-1", nil)), "http://"))
	require.NoError(t, err)
	for _, arg := range []string{port, ":" + port} {
		s, fault := parseSource(arg)
		require.Empty(t, fault)
		require.Equal(t, source{url: "http://127.0.0.1:" + port + "/status"}, s)
	}
	_, stdout, _ := command(t, "status", ":"+port)
	require.Contains(t, stdout, "node-1")
	s, fault := parseSource("65536")
	require.Empty(t, fault)
	require.Equal(t, source{path: "65536"}, s)
}

// Whoever gives another of the plugin's files or URLs is told which one is wanted.
func TestStatus_AnotherOfThePlugins(t *testing.T) {
	well := teller(t, 200, told("node-1", nil))
	socket := filepath.Join(shortDir(t), "kms.sock")
	ln, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	state := filepath.Join(t.TempDir(), "kms.sock.0123456789ab.state")
	require.NoError(t, os.WriteFile(state, []byte(`{"format":1}`), 0o600))
	for arg, want := range map[string]string{
		well + "/readyz": "ask for /status: " + well + "/status",
		socket:           "it is a socket, such as that on which KMS is served to kube-apiserver: give the host and the --healthz-port",
		state:            "it is the state file, which the plugin keeps for itself, and not the status file",
		state + ".state": "there is no such file",
	} {
		code, stdout, stderr := command(t, "status", arg)
		require.Equal(t, status.ExitUnknown, code)
		require.Empty(t, stderr)
		require.Contains(t, strings.Join(strings.Fields(stdout), " "), want)
	}
	_, stdout, _ := command(t, "status", teller(t, 404, nil))
	require.NotContains(t, stdout, "ask for /status", "that is where it asked")
}
