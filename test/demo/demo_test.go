package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"

	"azure-kms-plugin/test/stack"
	"azure-kms-plugin/test/stack/embedded"
)

// under is a value as it lies in etcd, under a version of the key.
func under(version string) string {
	var b []byte
	for n, field := range []string{"data", stack.KeyID(vaultName, keyName, version), "seed"} {
		b = protowire.AppendTag(b, protowire.Number(n+1), protowire.BytesType)
		b = protowire.AppendString(b, field)
	}
	return stack.Prefix + "azure:" + string(b)
}

// Every secret is counted once, however many pages of etcd there are, and what does
// not fit is an error and not a number.
func TestTellVersions(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	etcd, err := embedded.StartEtcd(ctx, t.TempDir())
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.URL}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	put := func(name, value string) {
		_, err := client.Put(ctx, "/registry/secrets/"+namespace+"/"+name, value)
		require.NoError(t, err)
	}
	const n = 1001 // one more than a page
	for i := range n {
		put(secretName(i), under("old"))
	}
	put(canary, under("new"))

	var out bytes.Buffer
	s := &scene{etcd: etcd, term: newTerminal(&out), version: "old", next: "new"}
	require.NoError(t, s.tellVersions(ctx, n, 1, ": the canary"))
	require.Equal(t, "   in etcd        1,001 under version old\n"+
		"                      1 under version new: the canary\n", out.String())

	require.ErrorContains(t, s.tellVersions(ctx, n+1, 1, ""), "1,001 secrets in etcd are under version old, not 1,002")
	require.ErrorContains(t, s.tellVersions(ctx, n, 0, ""), "1 secrets in etcd are under version new, not 0")
	put(canary, under("another"))
	require.ErrorContains(t, s.tellVersions(ctx, n, 0, ""), "under the unknown key ID "+stack.KeyID(vaultName, keyName, "another"))
	put(canary, "k8s\x00 in clear")
	require.ErrorContains(t, s.tellVersions(ctx, n, 0, ""), canary)
}

// Where no line can be drawn over, progress is told at most four times, and no
// escape sequence is written.
func TestBar(t *testing.T) {
	var out bytes.Buffer
	term := newTerminal(&out)
	for _, total := range []int{1, 3, 1000} {
		out.Reset()
		bar := term.bar("writing", total)
		for done := range total + 1 {
			bar.set(done)
		}
		bar.end()
		lines := strings.Count(out.String(), "\n")
		require.LessOrEqual(t, lines, 4)
		require.True(t, strings.HasSuffix(out.String(), fmt.Sprintf("writing %s of %s\n", thousands(total), thousands(total))), out.String())
		require.NotContains(t, out.String(), "\x1b")
	}
	term.moves = true
	out.Reset()
	bar := term.bar("writing", 2)
	bar.set(2)
	bar.end()
	require.Contains(t, out.String(), "\r   writing ["+strings.Repeat("#", 40)+"] 2 of 2")
	require.True(t, strings.HasSuffix(out.String(), "\x1b[K\n"))
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 100_000: "100,000", 1_234_567: "1,234,567"} {
		require.Equal(t, want, thousands(n))
	}
}

// A demo that was called wrongly starts nothing.
func TestRun_WrongUse(t *testing.T) {
	for _, args := range [][]string{{"-nonsense"}, {"once"}, {"-secrets=0"}, {"-secrets=100001"}, {"-plugin=/nonexistent/plugin"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitUsage, run(t.Context(), args, &stdout, &stderr), args)
		require.Empty(t, stdout.String(), args)
		require.True(t, strings.HasPrefix(stderr.String(), "demo: "), stderr.String())
	}
}
