package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"azure-kms-plugin/health/status"
)

// The document is in the file and on the port; what is left behind at the end says how
// the key was.
func TestServe_StatusFile(t *testing.T) {
	dir := shortDir(t)
	file, last := filepath.Join(dir, "status.json"), filepath.Join(dir, "last")
	require.NoError(t, os.WriteFile(last, []byte("what a container before had to say"), 0o666))
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
	require.NoError(t, os.WriteFile(last, []byte(strings.Repeat("x", 9000)), 0o666))
	p := prepare(t, dir, nil, "--termination-log="+last, "--key-name=no/key").start(t)
	require.Equal(t, 64, p.exit(t))
	text, err := os.ReadFile(last)
	require.NoError(t, err)
	require.Equal(t, p.stderr.String(), string(text))
	require.Contains(t, string(text), "--key-name")
}

// The state file is no place for the status, under any name.
func TestServe_StatusFileIsTheStateFile(t *testing.T) {
	dir := shortDir(t)
	o, faults := parse(append([]string{"--listen-addr=unix://" + dir + "/k.sock", "--termination-log="}, goodKey...))
	require.Empty(t, faults)
	cfg := filepath.Join(dir, "azure.json")
	require.NoError(t, os.WriteFile(cfg, []byte(goodConfig), 0o600))
	id, faults := signIn(options{configFile: cfg}, zap.NewNop())
	require.Empty(t, faults)
	o.statusFile = filepath.Join(dir, "status.json")
	require.Empty(t, o.checkStatusFile(id.config))
	state := o.memoryPath(id.config.Cloud())
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(dir, link))
	for _, path := range []string{state, filepath.Join(link, filepath.Base(state)), filepath.Join(link, "k.sock")} {
		o.statusFile = path
		faults := o.checkStatusFile(id.config)
		require.Len(t, faults, 1)
		require.Contains(t, faults[0], "--status-file: "+path+" is another file of this plugin")
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
}
