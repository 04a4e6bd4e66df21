package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/status"
)

// told is the document of a plugin that is well.
func told(node string, change func(*status.Document)) []byte {
	d := &status.Document{
		APIVersion: status.APIVersion, Kind: status.Kind, ObservedTime: time.Now().UTC(), StaleAfterSeconds: 90,
		Instance: status.Instance{ID: "id-of-" + node, Node: node}, Phase: status.Usable, Answer: status.Answer{OK: true, Text: "ok"},
		Key: "https://kvlab.vault.azure.net/keys/k1", KeyID: "x", Keys: []status.Key{{Version: v1, KeyID: "x", Role: status.RoleWrite}},
		Conditions: []status.Condition{{Type: status.IsDegraded, Status: status.False, Reason: "AsExpected"}},
	}
	if change != nil {
		change(d)
	}
	data, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return data
}

// teller serves an answer as /status.
func teller(t *testing.T, code int, body []byte) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/status" {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(code)
		_, _ = w.Write(body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func filed(t *testing.T, data []byte) string {
	path := filepath.Join(t.TempDir(), "status.json")
	require.NoError(t, os.WriteFile(path, data, 0o640))
	return path
}

// command runs a command of the program in this process.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(t.Context(), nil, args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestStatus_ExitStatus(t *testing.T) {
	// A proxy knows another loopback: nothing here may go by it.
	t.Setenv("HTTP_PROXY", nowhere)
	t.Setenv("NO_PROXY", "")
	lost := func(d *status.Document) {
		d.Phase, d.Failure = status.Lost, &status.Failure{Reason: "KeyDisabled", Since: time.Now(), Text: "the version is disabled"}
	}
	degraded := func(d *status.Document) {
		d.Phase, d.Failure = status.Degraded, &status.Failure{Reason: "Throttled", Since: time.Now(), Text: "too many requests"}
	}
	old := func(d *status.Document) { d.ObservedTime = time.Now().Add(-time.Hour) }
	other := func(d *status.Document) { d.KeyID, d.Keys = "y", []status.Key{{KeyID: "y", Role: status.RoleWrite}} }
	well := teller(t, 200, told("node-1", nil))
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, nobody answers
	require.NoError(t, err)
	t.Cleanup(func() { silent.Close() })
	redirect := httptest.NewServer(http.RedirectHandler(well+"/status", http.StatusFound))
	t.Cleanup(redirect.Close)
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for name, tc := range map[string]struct {
		code int
		args []string
		says string
	}{
		"a URL":           {0, []string{well + "/status"}, "node-1 writes under version " + v1},
		"a URL's host":    {0, []string{well}, "node-1"},
		"host and port":   {0, []string{strings.TrimPrefix(well, "http://")}, "node-1"},
		"a file":          {0, []string{filed(t, told("node-2", nil))}, "node-2"},
		"several":         {0, []string{well, "--timeout=20s", filed(t, told("node-2", nil))}, "Both replicas"},
		"degraded":        {1, []string{well, filed(t, told("node-2", degraded))}, "Throttled"},
		"another key":     {1, []string{well, filed(t, told("node-2", other))}, "do not write under one version"},
		"lost":            {2, []string{filed(t, told("node-2", lost)), well, "127.0.0.1:1"}, "KeyDisabled"},
		"stale":           {3, []string{filed(t, told("node-2", old))}, "the process that wrote it may be gone"},
		"refused":         {3, []string{well, "127.0.0.1:1"}, "nothing listens there: is the plugin running, and is --healthz-port the one?"},
		"silent":          {3, []string{"--timeout=100ms", silent.Addr().String()}, "no answer within 100ms"},
		"not found":       {3, []string{well + "/other"}, "http 404 Not Found"},
		"redirected":      {3, []string{redirect.URL}, "http 302: it redirects elsewhere"},
		"another server":  {3, []string{teller(t, 200, []byte("<html>"))}, "no plugin of this program: not the JSON"},
		"endless":         {3, []string{teller(t, 200, bytes.Repeat([]byte(" "), 2<<20))}, "more than 1048576 bytes"},
		"no such file":    {3, []string{"/nonexistent/status.json"}, "has the plugin started, with this"},
		"a bare name":     {3, []string{"node-9"}, "node-9:8787"},
		"a directory":     {3, []string{t.TempDir()}, "not a regular file"},
		"a pipe":          {3, []string{fifo}, "not a regular file"},
		"half a file":     {3, []string{filed(t, told("node-2", nil)[:40])}, "no status file: not the JSON"},
		"an empty file":   {3, []string{filed(t, nil)}, "no status file: empty"},
		"https to http":   {3, []string{strings.Replace(well, "http:", "https:", 1)}, "does not answer as a plugin does"},
		"a huge timeout":  {0, []string{"--timeout", "1000h", well}, "node-1"},
		"the last wins":   {0, []string{"-o", "json", "-o=table", well}, "NODE"},
		"a closed socket": {3, []string{closing(t)}, "closed without an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := command(t, append([]string{"status"}, tc.args...)...)
			require.Empty(t, stderr)
			require.Equal(t, tc.code, code, stdout)
			require.Contains(t, strings.Join(strings.Fields(stdout), " "), tc.says)
			require.NotContains(t, stdout, "\x1b")

			code, js, _ := command(t, append(append([]string{"status"}, tc.args...), "--output=json")...)
			require.Equal(t, tc.code, code)
			var l status.List
			require.NoError(t, json.Unmarshal([]byte(js), &l))
			require.Equal(t, tc.code, l.Summary.ExitStatus)
			require.Len(t, l.Items, max(1, l.Summary.Replicas+l.Summary.Unreadable))
		})
	}
}

// closing is a server that hangs up on a request.
func closing(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			c.Close()
		}
	}()
	return ln.Addr().String()
}

// Replicas are asked together, not one after another.
func TestStatus_AllAtOnce(t *testing.T) {
	var arrived atomic.Int32
	all := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if arrived.Add(1) == maxAsked {
			close(all)
		}
		<-all // nobody is answered before everybody has asked
		_, _ = w.Write(told("node-1", nil))
	}))
	t.Cleanup(srv.Close)
	args := []string{"status", "--timeout=20s", "-o=json"}
	for range maxAsked {
		args = append(args, srv.URL)
	}
	code, stdout, _ := command(t, args...)
	require.Equal(t, 0, code, stdout)
	require.Contains(t, stdout, `"replicas": 1,`)
}

// Without an argument it is the plugin of this machine, at the default port.
func TestStatus_Default(t *testing.T) {
	code, stdout, _ := command(t, "status", "-o", "json")
	require.Contains(t, stdout, `"source": "http://127.0.0.1:8787/status"`)
	require.Contains(t, []int{0, 1, 2, 3}, code)
	require.Equal(t, "8787", defaultOf("healthz-port"))
}

func TestStatus_WrongUse(t *testing.T) {
	var out strings.Builder
	for _, args := range [][]string{
		{"-o", "yaml"},
		{"--output="},
		{"--timeout=soon", "--timeout=0s"},
		{"--no-such-flag=PWCANARY", "--neither", "x", "---y=PWCANARY"},
		{"-o"},
		{""},
		{"ftp://PWCANARY"},
		{"http://u:PWCANARY@node-1:8787/status"},
		{"http://node-1:8787/status?token=PWCANARY", "http://"},
		{"--help=perhaps"},
	} {
		code, stdout, stderr := command(t, append([]string{"status"}, args...)...)
		require.Equal(t, 64, code, args)
		require.Empty(t, stdout)
		fmt.Fprintf(&out, "# %q\n%s\n", args, strings.ReplaceAll(stderr, "PWCANARY", "!!!"))
	}
	require.NotContains(t, out.String(), "!!!\n")
	golden(t, "status-faults.txt", out.String())
}

func TestStatus_Help(t *testing.T) {
	for _, args := range [][]string{{"status", "-h"}, {"status", "--help", "x"}, {"status", "x", "-help"}} {
		code, stdout, stderr := command(t, args...)
		require.Equal(t, 0, code)
		require.Empty(t, stderr)
		golden(t, "help-status.txt", stdout)
	}
}

// The program's own documents are read: the page on commands shows what comes of it.
func TestCommands_AreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/commands.md")
	require.NoError(t, err)
	for _, flags := range [][]flagSpec{statusFlags, doctorFlags} {
		for _, f := range flags {
			require.Contains(t, string(page), fmt.Sprintf("| `--%s` | `%s` |", f.name, f.def))
		}
	}
	for _, c := range commands {
		require.Contains(t, string(page), "azure-kms-plugin "+c)
	}
	for _, step := range doctorSteps() {
		require.Contains(t, string(page), "| `"+step+"` |")
	}
}
