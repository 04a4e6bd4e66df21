package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"
)

// D02: every end but SIGKILL takes the socket away, in time, with status 0.
func TestStop(t *testing.T) {
	type stop struct {
		name string
		sig  os.Signal
		env  []string
	}
	stops := []stop{
		{"SIGTERM", syscall.SIGTERM, nil},
		{"SIGINT", syscall.SIGINT, nil},
		{"while the first token hangs", syscall.SIGTERM, []string{"HTTPS_PROXY=" + silence(t)}},
	}
	if !signal.Ignored(syscall.SIGHUP) { // under nohup the program is to live on
		stops = append(stops, stop{"SIGHUP", syscall.SIGHUP, nil})
	}
	for _, tc := range stops {
		t.Run(tc.name, func(t *testing.T) {
			p := prepare(t, shortDir(t), tc.env).start(t).serving(t)
			require.NoError(t, p.cmd.Process.Signal(tc.sig))
			require.Equal(t, 0, p.exit(t))
			require.NotContains(t, p.stderr.String(), "cut off", "nothing was under way that the grace is for")
			require.NoFileExists(t, p.socket)
			require.NotContains(t, p.stderr.String(), "panic")
		})
	}
}

// D02: a signal during the start, whenever it comes.
func TestStop_DuringStart(t *testing.T) {
	for _, delay := range []time.Duration{0, 2, 5, 10, 15, 20, 30, 50} {
		p := prepare(t, shortDir(t), nil).start(t)
		time.Sleep(delay * time.Millisecond) // the moment is the case
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		code := p.exit(t)
		if code == -1 {
			// Before the program's first line: nothing was made yet.
			require.Empty(t, p.stderr.String())
		} else {
			require.Equal(t, 0, code)
		}
		require.NoFileExists(t, p.socket)
		require.NotContains(t, p.stderr.String(), "panic")
	}
}

// The first signal lets calls in flight go on, the second cuts them off.
func TestStop_Twice(t *testing.T) {
	p := prepare(t, shortDir(t), []string{"HTTPS_PROXY=" + silence(t)}).start(t).serving(t)
	failed := make(chan error, 1)
	client := p.client(t)
	go func() {
		_, err := client.Encrypt(context.Background(), &kmsapi.EncryptRequest{Plaintext: []byte("x"), Uid: "u"})
		failed <- err
	}()
	// A first Status has been answered, so the server is up and the Encrypt is in it.
	_, err := p.status(t)
	require.Error(t, err)

	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool { return strings.Contains(p.stderr.String(), "stopping") }, patience, time.Millisecond)
	select {
	case <-p.done:
		require.Fail(t, "the call in flight was not waited for")
	case <-time.After(300 * time.Millisecond):
	}
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 1, p.exit(t))
	require.NotContains(t, p.stderr.String(), "after the grace")
	require.Error(t, <-failed)
	require.NoFileExists(t, p.socket)
}

func TestStop_TwiceWithNothingUnderWay(t *testing.T) {
	p := prepare(t, shortDir(t), nil).start(t).serving(t)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 0, p.exit(t))
	require.NoFileExists(t, p.socket)
}

// S01: what a killed process left behind does not keep the next one away.
func TestStaleSocket(t *testing.T) {
	dir := shortDir(t)
	p := prepare(t, dir, nil).start(t).serving(t)
	require.NoError(t, p.cmd.Process.Kill())
	p.exit(t)
	require.FileExists(t, p.socket)
	q := prepare(t, dir, nil).start(t).serving(t)
	require.Contains(t, q.stderr.String(), "stale")
}

// S02: a live socket is not stolen, and S06: nothing else is removed.
func TestSocketTaken(t *testing.T) {
	dir := shortDir(t)
	a := prepare(t, dir, nil).start(t).serving(t)
	b := prepare(t, dir, nil, "--key-version=ffffffffffffffffffffffffffffffff").start(t)
	require.Equal(t, 64, b.exit(t))
	require.Contains(t, b.stderr.String(), "--listen-addr: ")
	require.Contains(t, b.stderr.String(), a.socket)
	require.Equal(t, 1, strings.Count(b.stderr.String(), "\n"), "one line says it")
	_, err := a.status(t)
	require.ErrorContains(t, err, "Unreachable: ", "A still answers")

	dir = shortDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "k.sock"), []byte("data"), 0o600))
	c := prepare(t, dir, nil).start(t)
	require.Equal(t, 64, c.exit(t))
	data, err := os.ReadFile(c.socket)
	require.NoError(t, err)
	require.Equal(t, "data", string(data))
}

// Local faults are found before a running plugin's socket is touched: the file
// of a stale one keeps its inode.
func TestLocalFaultsTouchNothing(t *testing.T) {
	taken, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	for _, tc := range []struct {
		name   string
		config string
		args   []string
		want   []string
	}{
		// H06 (a)
		{"healthz port taken", goodConfig, []string{"--healthz-port=" + port}, []string{"--healthz-port: ", port, "address already in use"}},
		{"metrics port taken", goodConfig, []string{"--metrics-addr=" + port}, []string{"--metrics-addr: ", port, "address already in use"}},
		{"metrics address of another machine", goodConfig, []string{"--metrics-addr=192.0.2.1:9"}, []string{"--metrics-addr: "}},
		{"flag", goodConfig, []string{"--v=x"}, []string{"--v: "}},
		// C02 (a), C07
		{"unescaped quote", `{"aadClientSecret":"PwX"CANARY9"}`, nil, []string{"--config-file-path: ", "azure.json"}},
		{"empty file", "", nil, []string{"azure.json", "empty"}},
		{"null", "null", nil, []string{"azure.json"}},
		{"no credentials", `{"tenantId":"11111111-2222-3333-4444-555555555555"}`, nil, []string{"azure.json"}},
		{"secret without ID", `{"tenantId":"11111111-2222-3333-4444-555555555555","aadClientSecret":"CANARY"}`, nil, []string{"azure.json", "aadClientId"}},
		{"unknown cloud", `{"cloud":"Nope",` + goodConfig[1:], nil, []string{"azure.json", "cloud", "AzurePublicCloud"}},
		{"key of another cloud", goodConfig, []string{"--key-url=https://kvlab.managedhsm.azure.cn/keys/k1"}, []string{"--key-url: ", "AzureChinaCloud", "the field cloud"}},
		{"old key of another cloud", `{"cloud":"AzureChinaCloud",` + goodConfig[1:], []string{"--decrypt-key=https://kvlab.VAULT.azure.net/keys/k1"}, []string{"--decrypt-key: ", "AzurePublicCloud"}},
		{"placeholder", `{"aadClientId":"msi","aadClientSecret":"msi"}`, nil, []string{"azure.json", "msi"}},
		{"CA file", goodConfig, []string{"--ca-file=/dev/null"}, []string{"--ca-file: "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := shortDir(t)
			ln, err := net.Listen("unix", filepath.Join(dir, "k.sock"))
			require.NoError(t, err)
			ln.(*net.UnixListener).SetUnlinkOnClose(false)
			require.NoError(t, ln.Close())
			before, err := os.Stat(filepath.Join(dir, "k.sock"))
			require.NoError(t, err)

			require.NoError(t, os.WriteFile(filepath.Join(dir, "azure.json"), []byte(tc.config), 0o600))
			p := prepare(t, dir, nil, tc.args...).start(t)
			require.Equal(t, 64, p.exit(t))
			for _, want := range tc.want {
				require.Contains(t, p.stderr.String(), want)
			}
			require.NotContains(t, p.stderr.String(), "CANARY")
			for line := range strings.Lines(p.stderr.String()) {
				require.True(t, strings.HasPrefix(line, "azure-kms-plugin: --") || line == "azure-kms-plugin: "+seeHelp+"\n", line)
			}
			after, err := os.Stat(p.socket)
			require.NoError(t, err)
			require.True(t, os.SameFile(before, after))
		})
	}
}

// T01: a user who may not read the file is told who it is and what the mode is.
func TestUnreadableConfig(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	dir := shortDir(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	// The test binary lies in a directory that only its owner may enter.
	exe := filepath.Join(dir, "program")
	data, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(exe, data, 0o755))
	p := prepare(t, dir, nil)
	p.cmd.Path, p.cmd.Dir = exe, dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	p.start(t)
	require.Equal(t, 64, p.exit(t))
	for _, want := range []string{"azure.json", "65532", "0600"} {
		require.Contains(t, p.stderr.String(), want)
	}
}

// S07 (a): the socket accepts and Status answers though the vault hangs, and
// /livez, /healthz, /readyz and /metrics say what they should.
func TestVaultAway(t *testing.T) {
	health, metrics := freePort(t), freePort(t)
	p := prepare(t, shortDir(t), []string{"HTTPS_PROXY=" + silence(t)}, "--healthz-port="+health, "--metrics-addr=127.0.0.1:"+metrics, "--healthz-timeout=1s").start(t).serving(t)
	_, err := p.status(t)
	require.ErrorContains(t, err, "Unavailable")
	require.ErrorContains(t, err, "Unreachable: ")
	for path, want := range map[string]int{"/livez": 200, "/healthz": 200, "/readyz": 503, "/nope": 404} {
		code, body := get(t, "http://127.0.0.1:"+health+path)
		require.Equal(t, want, code, body)
	}
	_, body := get(t, "http://127.0.0.1:"+metrics+"/metrics")
	require.Contains(t, body, "azure_kms_status_ok 0\n")
	require.Contains(t, body, `operation="status",reason="Unreachable"} 1`+"\n")
	require.Contains(t, body, `operation="decrypt",reason="Success"} 0`+"\n")
}

// Silent clients do not keep kubelet out, and the process does not grow with
// them.
func TestConnectionCap(t *testing.T) {
	health := freePort(t)
	p := prepare(t, shortDir(t), nil, "--healthz-port="+health).start(t).serving(t)
	var conns []net.Conn
	for range 300 {
		c, err := net.Dial("tcp", "127.0.0.1:"+health)
		require.NoError(t, err)
		defer c.Close()
		conns = append(conns, c)
	}
	code, _ := get(t, "http://127.0.0.1:"+health+"/livez")
	require.Equal(t, 200, code)
	_, err := p.status(t)
	require.Error(t, err, "the socket is served all along")
	require.Len(t, conns, 300)
}

// The log holds this program's lines alone, whatever the environment asks of
// the libraries.
func TestLibrariesAreSilent(t *testing.T) {
	p := prepare(t, shortDir(t), []string{
		"GRPC_GO_LOG_SEVERITY_LEVEL=info", "GRPC_GO_LOG_VERBOSITY_LEVEL=99", "AZURE_SDK_GO_LOGGING=all",
	}, "--log-format-json").start(t).serving(t)
	c, err := net.Dial("unix", p.socket)
	require.NoError(t, err)
	_, err = io.WriteString(c, "this is not HTTP/2 at all\r\n\r\n")
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, c) // until the server gives it up
	_, err = p.status(t)
	require.Error(t, err)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, p.exit(t))
	for line := range strings.Lines(p.stderr.String()) {
		require.True(t, strings.HasPrefix(line, "{"), line)
	}
}

// A log reader that goes away does not take the plugin with it.
func TestBrokenPipe(t *testing.T) {
	p := prepare(t, shortDir(t), nil, "-v=10")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p.cmd.Stderr = w
	p.start(t)
	w.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	require.NotEmpty(t, line)
	r.Close()
	for range 3 {
		_, err = p.status(t)
		require.ErrorContains(t, err, "Unreachable: ")
		_, err = p.client(t).Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: []byte("x"), Uid: "u"}) // logs
		require.Error(t, err)
	}
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, p.exit(t))
}

// T03: the FIPS modes of the Go module and the older variable.
func TestFIPS(t *testing.T) {
	for _, env := range []string{"GODEBUG=fips140=on", "GODEBUG=fips140=only", "GOFIPS=1"} {
		t.Run(env, func(t *testing.T) {
			p := prepare(t, shortDir(t), []string{env}).start(t).serving(t)
			_, err := p.status(t)
			require.ErrorContains(t, err, "Unreachable: ")
			require.NotContains(t, p.stderr.String(), "panic")
		})
	}
}

// C06: the old flag chooses the file, and says that it is old.
func TestDeprecatedConfigFlag(t *testing.T) {
	dir := shortDir(t)
	old := filepath.Join(dir, "old.json")
	require.NoError(t, os.WriteFile(old, []byte("{}"), 0o600))
	var stderr bytes.Buffer
	code := run(t.Context(), nil, append([]string{"--configFilePath=" + old, "--healthz-port=0", "--metrics-addr=0"}, goodKey...), io.Discard, &stderr)
	require.Equal(t, 64, code)
	require.Contains(t, stderr.String(), old, "not the default file")

	p := prepare(t, dir, nil, "--configFilePath="+old, "--logtostderr").start(t).serving(t)
	require.Contains(t, p.stderr.String(), "--configFilePath is deprecated and not used")
	require.Contains(t, p.stderr.String(), "logging flags of klog are ignored: --logtostderr")
}

// L02, as far as it needs no vault: nothing that was given to the program in
// confidence is in its output.
func TestNoSecrets(t *testing.T) {
	for _, format := range []string{"--log-format-json", "--log-format-json=false"} {
		health, metrics := freePort(t), freePort(t)
		p := prepare(t, shortDir(t), []string{
			"AZURE_SDK_GO_LOGGING=all", "HTTPS_PROXY=http://u:PWCANARY@127.0.0.1:1", "HTTP_PROXY=http://u:PWCANARY@127.0.0.1:1",
		}, "-v=10", format, "--healthz-port="+health, "--metrics-addr="+metrics).start(t).serving(t)
		_, err := p.status(t)
		require.ErrorContains(t, err, "Unreachable: ")
		_, eerr := p.client(t).Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: []byte("PLAINCANARY"), Uid: "UIDCANARY"})
		require.Error(t, eerr)
		_, ready := get(t, "http://127.0.0.1:"+health+"/readyz?verbose")
		_, series := get(t, "http://127.0.0.1:"+metrics+"/metrics")
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 0, p.exit(t))
		for _, text := range []string{p.stderr.String(), err.Error(), eerr.Error(), ready, series} {
			for _, canary := range []string{"PWCANARY", "SECRETCANARY", "PLAINCANARY"} {
				require.NotContains(t, text, canary)
			}
		}
		require.Contains(t, p.stderr.String(), "key ID changed")
	}
}
