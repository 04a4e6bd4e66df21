package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/doctor"
)

// A program that a test has started asks this resolver, if there is one.
func init() {
	if to := os.Getenv("TEST_RESOLVER"); to != "" {
		net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "udp", to)
		}}
	}
}

// resolver is a DNS server that knows no name, or one address for all of them.
func resolver(t *testing.T, address net.IP) (env []string) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1024)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(resolved(buf[:n], address), from)
		}
	}()
	return append(direct(), "TEST_RESOLVER="+conn.LocalAddr().String())
}

// direct leads by no proxy.
func direct() []string { return []string{"HTTPS_PROXY=", "HTTP_PROXY=", "https_proxy=", "http_proxy="} }

func resolved(query []byte, address net.IP) []byte {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the root, type and class
	out := append([]byte(nil), query[:end]...)
	flags := uint16(0x8180)
	if address == nil {
		flags |= 3 // no such name
	}
	binary.BigEndian.PutUint16(out[2:], flags)
	for _, count := range []int{6, 8, 10} {
		binary.BigEndian.PutUint16(out[count:], 0)
	}
	if isA := binary.BigEndian.Uint16(query[end-4:]) == 1; address != nil && isA {
		binary.BigEndian.PutUint16(out[6:], 1)
		out = append(append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), address.To4()...)
	}
	return out
}

// examine runs doctor in dir as a process, and checks what holds for every run: nothing
// on disk changes, and no output holds a secret.
func examine(t *testing.T, dir string, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := prepare(t, dir, env, args...)
	p.cmd.Args = append([]string{p.cmd.Args[0], "doctor"}, p.cmd.Args[1:]...)
	var out, errs bytes.Buffer
	p.cmd.Stdout, p.cmd.Stderr = &out, &errs
	before := disk(t, dir)
	_ = p.cmd.Run()
	require.Equal(t, before, disk(t, dir), "the disk is as it was")
	for _, secret := range []string{"CANARY", "eyJ", "Bearer"} {
		require.NotContains(t, out.String()+errs.String(), secret)
	}
	return p.cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// disk is everything in a directory.
func disk(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := e.Info()
		require.NoError(t, err)
		all[path] = fmt.Sprint(info.Mode(), info.ModTime(), info.Size())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			all[path] += fmt.Sprintf(" %x", sha256.Sum256(data))
		}
		return nil
	}))
	return all
}

func reported(t *testing.T, stdout string) (r doctor.Report) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stdout)
	return r
}

func stepOf(t *testing.T, r doctor.Report, name doctor.Name) doctor.Step {
	t.Helper()
	for _, s := range r.Steps {
		if s.Name == name {
			return s
		}
	}
	require.Fail(t, "no such step", "%s in %+v", name, r)
	return doctor.Step{}
}

// harmless are the calls that doctor may make.
var harmless = []string{"healthstatus", "challenge", "openid", "token", "get", "getdeleted", "encrypt", "decrypt", "other"}
