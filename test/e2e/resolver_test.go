package e2e_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// A resolver is a DNS server for plugins. The machine's own cannot be replaced without
// privileges, so those plugins are built with one more file, which sets Go's resolver.
// The only name that they look up themselves is the proxy's; here it is the vault's.
type resolver struct {
	addr   string
	plugin string // the binary
	mode   atomic.Int32
}

// What a resolver answers. The values are DNS response codes, but for silence.
const (
	nameFound   = 0
	nameMissing = 3
	silence     = -1
)

const vaultHost = vaultName + ".vault.azure.net"

// resolverFile is what the plugins are built with.
const resolverFile = `package main

import (
	"context"
	"net"
	"os"
)

func init() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", os.Getenv("E2E_RESOLVER"))
	}}
}
`

// newResolver answers that the vault's host is this machine. plugin is what
// buildWithResolver has built.
func newResolver(t *testing.T, plugin string) *resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &resolver{addr: conn.LocalAddr().String(), plugin: plugin}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.serve(conn)
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return r
}

// buildWithResolver returns the path of a plugin that asks $E2E_RESOLVER for names.
func buildWithResolver(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, overlay, out := filepath.Join(dir, "resolver.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "azure-kms-plugin")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(programs.root, "cmd", "azure-kms-plugin", "e2e_resolver.go"): source,
	}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(source, []byte(resolverFile), 0o600))
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", "grpcnotrace", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-overlay", overlay, "-o", out, "./cmd/azure-kms-plugin")
	cmd.Dir = programs.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	return out
}

// use has a plugin ask this resolver for its proxy.
func (r *resolver) use(c *stack.PluginConfig) {
	c.Bin = r.plugin
	env := []string{"E2E_RESOLVER=" + r.addr}
	for _, v := range c.Env {
		env = append(env, strings.Replace(v, "http://127.0.0.1:", "http://"+vaultHost+":", 1))
	}
	c.Env = env
}

// answer changes what is answered from now on.
func (r *resolver) answer(mode int32) { r.mode.Store(mode) }

func (r *resolver) serve(conn net.PacketConn) {
	query := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(query)
		if err != nil {
			return
		}
		mode := r.mode.Load()
		if mode == silence || n < 12 {
			continue
		}
		if reply, err := dnsReply(query[:n], uint16(mode)); err == nil {
			_, _ = conn.WriteTo(reply, from) // who has left asks no more
		}
	}
}

// dnsReply answers a query with its code; a query for an IPv4 address with 127.0.0.1 if
// the code is 0.
func dnsReply(query []byte, code uint16) ([]byte, error) {
	end := 12
	for end < len(query) && query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5
	if end > len(query) {
		return nil, fmt.Errorf("a query of %d bytes", len(query))
	}
	reply := append([]byte{}, query[:end]...)
	binary.BigEndian.PutUint16(reply[2:], 0x8180|code)
	for i := 4; i < 12; i += 2 {
		binary.BigEndian.PutUint16(reply[i:], 0)
	}
	binary.BigEndian.PutUint16(reply[4:], 1)
	if code == 0 && binary.BigEndian.Uint16(query[end-4:]) == 1 {
		binary.BigEndian.PutUint16(reply[6:], 1)
		reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1)
	}
	return reply, nil
}
