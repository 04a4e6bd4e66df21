package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRunPrintsWhereItIsAndStopsWhenTold(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	dir := t.TempDir()
	out, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"-vault", "hsm1", "-hsm", "-key", "seal", "-azure-json", dir}, w, io.Discard)
		w.Close()
	}()
	var text strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(text.String(), "export SSL_CERT_FILE=") {
		n, err := out.Read(buf)
		require.NoError(t, err)
		text.Write(buf[:n])
	}
	require.Regexp(t, `(?m)^vault:   https://hsm1\.managedhsm\.azure\.net$`, text.String())
	require.Regexp(t, `(?m)^key:     https://hsm1\.managedhsm\.azure\.net/keys/seal/[0-9a-f]{32}$`, text.String())
	require.Contains(t, text.String(), "\nexport HTTPS_PROXY=http://127.0.0.1:")
	require.FileExists(t, dir+"/azure.json")
	admin := regexp.MustCompile(`(?m)^export ADMIN=(\S+)$`).FindStringSubmatch(text.String())[1]
	require.Contains(t, text.String(), "admin:   "+admin+"\n")
	sockets := regexp.MustCompile(`--listen-addr=unix://(\S+)/kms\.sock\n`).FindStringSubmatch(text.String())[1]
	left, err := os.ReadDir(sockets)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is remembered of an emulator before")
	res, err := http.Get(admin)
	require.NoError(t, err)
	defer res.Body.Close()
	var state struct{ CAFile string }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&state))
	require.FileExists(t, state.CAFile)
	stop()
	select {
	case c := <-code:
		require.Zero(t, c)
	case <-time.After(10 * time.Second):
		t.Fatal("it does not stop")
	}
	_, err = os.Stat(state.CAFile)
	require.ErrorIs(t, err, os.ErrNotExist, "it leaves nothing behind")
	require.NoFileExists(t, dir+"/azure.json", "nobody can sign in by it any more")
	_, err = os.Stat(sockets)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRunRefusesWrongUse(t *testing.T) {
	for _, args := range [][]string{
		{"-nonsense"}, {"extra"}, {"-vault", "no vault"}, {"-bits", "512"}, {"-key", "../x"}, {"-token-lifetime", "-1s"},
	} {
		var said strings.Builder
		code := run(t.Context(), args, io.Discard, &said)
		require.Contains(t, []int{1, usage}, code, args)
		require.NotEmpty(t, said.String(), args)
	}
}
