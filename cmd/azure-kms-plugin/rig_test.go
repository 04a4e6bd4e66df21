package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/vault/freeport"
)

// TestMain lets the tests run this binary as the program itself.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_RUN_AS_PROGRAM") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for something that should be at once.
const patience = 20 * time.Second

const (
	goodConfig = `{"tenantId":"11111111-2222-3333-4444-555555555555","aadClientId":"66666666-2222-3333-4444-555555555555","aadClientSecret":"SECRETCANARY"}`
	// nowhere is a proxy that refuses connections.
	nowhere = "http://127.0.0.1:1"
)

// A process is the program, run by a test.
type process struct {
	cmd    *exec.Cmd
	dir    string
	socket string
	stderr *buffer
	done   chan struct{}
	err    error // of Wait, once done is closed
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "akp")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// prepare makes a command line that serves in dir, whose vault cannot be
// reached. Later arguments replace earlier ones; a key's URL takes the place of
// its name.
func prepare(t *testing.T, dir string, env []string, args ...string) *process {
	p := &process{dir: dir, socket: filepath.Join(dir, "k.sock"), stderr: &buffer{}, done: make(chan struct{})}
	cfg := filepath.Join(dir, "azure.json")
	if _, err := os.Stat(cfg); errors.Is(err, os.ErrNotExist) {
		require.NoError(t, os.WriteFile(cfg, []byte(goodConfig), 0o600))
	}
	key := goodKey
	if byURL(args) {
		key = nil
	}
	p.cmd = exec.Command(os.Args[0], append(append([]string{
		"--config-file-path=" + cfg, "--listen-addr=unix://" + p.socket, "--healthz-port=0", "--metrics-addr=0", "--termination-log=",
	}, key...), args...)...)
	p.cmd.Env = append(os.Environ(), "TEST_RUN_AS_PROGRAM=1", "HTTPS_PROXY="+nowhere, "HTTP_PROXY="+nowhere, "NO_PROXY=", "https_proxy=", "http_proxy=")
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = p.stderr, p.stderr
	return p
}

func byURL(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--key-url=") })
}

func (p *process) start(t *testing.T) *process {
	require.NoError(t, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("output of the program:\n%s", p.stderr)
		}
	})
	return p
}

// serving waits until the socket accepts.
func (p *process) serving(t *testing.T) *process {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := net.Dial("unix", p.socket)
		if err != nil {
			return false
		}
		c.Close()
		return strings.Contains(p.stderr.String(), "key ID changed")
	}, patience, time.Millisecond)
	return p
}

// exit waits for the end and returns the exit status, -1 for a death by signal.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		require.FailNow(t, "still running", p.stderr.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) client(t *testing.T) kmsapi.KeyManagementServiceClient {
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", p.socket)
		}))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return kmsapi.NewKeyManagementServiceClient(conn)
}

// status calls Status as kube-apiserver does.
func (p *process) status(t *testing.T) (*kmsapi.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	return p.client(t).Status(ctx, &kmsapi.StatusRequest{})
}

// silence is a proxy that accepts and never answers.
func silence(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
	}()
	t.Cleanup(func() { ln.Close() })
	return "http://" + ln.Addr().String()
}

func freePort(t *testing.T) string {
	port, err := freeport.Find()
	require.NoError(t, err)
	return strconv.Itoa(port)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}
