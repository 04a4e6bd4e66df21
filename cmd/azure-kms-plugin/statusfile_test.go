package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"azure-kms-plugin/health"
	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// The document is in the file and on the port; what is left behind at the end says how
// the key was.
func TestServe_StatusFile(t *testing.T) {
	dir := shortDir(t)
	file, last := filepath.Join(dir, "status.json"), filepath.Join(dir, "last")
	require.NoError(t, os.WriteFile(last, []byte("serving ended: what a container before had to say"), 0o666))
	port := freePort(t)
	p := prepare(t, dir, nil, "--status-file="+file, "--termination-log="+last, "--healthz-port="+port).start(t).serving(t)
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return false
		}
		require.NoError(t, err)
		d, err := status.Decode(bytes.NewReader(data))
		require.NoError(t, err, "a reader never sees half a document")
		return d.Failure != nil && d.Failure.Reason == "Unreachable"
	}, patience, time.Millisecond)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o640), info.Mode())
	code, body := get(t, "http://127.0.0.1:"+port+"/status")
	require.Equal(t, 200, code)
	_, err = status.Decode(strings.NewReader(body))
	require.NoError(t, err)
	code, body = get(t, "http://127.0.0.1:"+port+"/")
	require.Equal(t, 200, code)
	require.Contains(t, body, "(Unreachable)")

	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, p.exit(t))
	text, err := os.ReadFile(last)
	require.NoError(t, err)
	require.Regexp(t, `^stopped as asked; the key was \w+ \(Unreachable\), version that writes: `+v1+`\n$`, string(text))
	require.FileExists(t, file, "the last that is known")
}

// What keeps it from starting is where kubelet looks for it.
func TestServe_LastWordsOfAFault(t *testing.T) {
	dir := shortDir(t)
	last := filepath.Join(dir, "last")
	require.NoError(t, os.WriteFile(last, []byte("azure-kms-plugin: "+strings.Repeat("x", 9000)), 0o666))
	p := prepare(t, dir, nil, "--termination-log="+last, "--key-name=no/key").start(t)
	require.Equal(t, 64, p.exit(t))
	text, err := os.ReadFile(last)
	require.NoError(t, err)
	require.Equal(t, p.stderr.String(), string(text))
	require.Contains(t, string(text), "--key-name")
}

// No file that the plugin reads or keeps is written over by another, under any name and
// by no detour; nothing is touched by saying so.
func TestServe_FilesThatOverlap(t *testing.T) {
	dir := shortDir(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	config := strings.Replace(goodConfig, "{", fmt.Sprintf(`{"aadClientCertPath":%q,"aadMSIDataPlaneIdentityPath":%q,`, in("cert.new"), in("msi.new")), 1)
	require.NoError(t, os.WriteFile(in("azure.json.new"), []byte(config), 0o600))
	for _, name := range []string{"cert.new", "msi.new", "token.new", "certs.new"} {
		require.NoError(t, os.WriteFile(in(name), []byte("CANARY"), 0o600))
	}
	require.NoError(t, os.Symlink(dir, in("link")))
	t.Setenv("AZURE_FEDERATED_TOKEN_FILE", in("token.new"))
	t.Setenv("SSL_CERT_FILE", in("certs.new"))
	args := append([]string{"--listen-addr=unix://" + in("k.sock"), "--config-file-path=" + in("azure.json.new"), "--healthz-port=0", "--metrics-addr=0"}, goodKey...)
	o, faults := parse(args)
	require.Empty(t, faults)
	id, faults := signIn(o, zap.NewNop())
	require.Empty(t, faults)
	state := o.memoryPath(id.config.Cloud())
	require.NoError(t, os.WriteFile(state, []byte("{}"), 0o600))

	others := map[string]string{
		in("azure.json.new"): "--config-file-path", in("cert.new"): "aadClientCertPath of azure.json", in("msi.new"): "aadMSIDataPlaneIdentityPath of azure.json",
		in("token.new"): "AZURE_FEDERATED_TOKEN_FILE", in("certs.new"): "SSL_CERT_FILE", in("k.sock"): "--listen-addr", state: "--state-dir", state + ".new": "--state-dir",
	}
	before := disk(t, dir)
	for path, owner := range others {
		for _, name := range []string{path, in("link/" + filepath.Base(path))} {
			for flag, other := range map[string]string{"--status-file": "--termination-log=", "--termination-log": "--status-file=" + in("status.json")} {
				code, _, stderr := command(t, append(args, other, flag+"="+name)...)
				require.Equal(t, 64, code)
				require.Contains(t, stderr, fmt.Sprintf("%s: %s is another file of this plugin, that of %s: give ", flag, name, owner))
			}
			before, isTemporary := strings.CutSuffix(name, ".new")
			if !isTemporary || owner == "--state-dir" {
				continue
			}
			code, _, stderr := command(t, append(args, "--termination-log=", "--status-file="+before)...)
			require.Equal(t, 64, code)
			require.Contains(t, stderr, fmt.Sprintf("--status-file: %s, by way of which %s is written, is another file of this plugin, that of %s: ", name, before, owner))
		}
	}
	code, _, stderr := command(t, append(args, "--termination-log="+in("x"), "--status-file="+in("link/x"))...)
	require.Equal(t, 64, code)
	require.Contains(t, stderr, "that of --termination-log")
	require.Equal(t, before, disk(t, dir))
}

// What replaces the state file must not pass through another file either.
func TestServe_StateFileThatOverlaps(t *testing.T) {
	dir := shortDir(t)
	listen := append([]string{"--listen-addr=unix://" + filepath.Join(dir, "k.sock"), "--termination-log="}, goodKey...)
	o, faults := parse(listen)
	require.Empty(t, faults)
	public, err := keyvault.ParseCloud("")
	require.NoError(t, err)
	config := health.TemporaryPath(o.memoryPath(public))
	require.NoError(t, os.WriteFile(config, []byte(goodConfig), 0o600))
	code, _, stderr := command(t, append(listen, "--config-file-path="+config)...)
	require.Equal(t, 64, code)
	require.Contains(t, stderr, "--state-dir: "+config+", by way of which ")
	require.FileExists(t, config)
}

// A fault may hide what azure.json names: last words take the place of last words alone.
func TestLastWords_OfAFaultThatHidesAFile(t *testing.T) {
	dir := shortDir(t)
	config, cert := filepath.Join(dir, "azure.json"), filepath.Join(dir, "cert.pem")
	require.NoError(t, os.WriteFile(config, []byte(`{"aadClientCertPath":"`+cert+`"`), 0o600))
	require.NoError(t, os.WriteFile(cert, []byte("-----BEGIN"), 0o600))
	before := disk(t, dir)
	for _, path := range []string{config, cert} {
		code, _, stderr := command(t, append([]string{"--config-file-path=" + config, "--termination-log=" + path}, goodKey...)...)
		require.Equal(t, 64, code)
		require.Contains(t, stderr, "not valid JSON")
		require.Equal(t, before, disk(t, dir))
	}
}

// Only a file that is there is written, and nothing but a file.
func TestLastWords(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	lastWords(path, "x")
	require.NoFileExists(t, path)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	lastWords(path, strings.Repeat("x", 4095)+"é\n")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("x", 4095), string(text), "as much as is read, and no half letter")

	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for _, odd := range []string{link, fifo, dir, ""} {
		lastWords(odd, "y")
	}
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, text, again)

	// Last words take the place of earlier ones and of nothing else.
	words := lastState(&status.Document{Phase: status.Usable})
	for _, earlier := range []string{words, complain(io.Discard, []string{"x"}), wordsOfEnd + "x"} {
		require.NoError(t, os.WriteFile(path, []byte(earlier), 0o600))
		lastWords(path, words)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, words, string(text))
	}
	for _, other := range []string{"x", "{", "stopped", "a note of azure-kms-plugin: x"} {
		require.NoError(t, os.WriteFile(path, []byte(other), 0o600))
		lastWords(path, words)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, other, string(text))
	}
}
