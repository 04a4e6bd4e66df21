package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/vault"
)

// gauge reads one series without labels.
func gauge(t *testing.T, l *lab, name string) float64 {
	t.Helper()
	_, series := get(t, l.metrics)
	for line := range strings.Lines(series) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(t, err)
			return f
		}
	}
	require.FailNow(t, "no "+name)
	return 0
}

// Case A01: a thousand calls, fifty at a time, cost one token; a directory that
// throttles is not noticed while it is valid; nothing piles up.
func TestServe_TokenIsNotFetchedPerCall(t *testing.T) {
	l := startLab(t, nil, nil).usable(t)
	client := l.client(t)
	e := l.encrypt(t, []byte(seed))
	storm := func() {
		t.Helper()
		work := make(chan int)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for i := range work {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					var err error
					if i%2 == 0 {
						_, err = client.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: fmt.Append(nil, seed[:16], i), Uid: "u"})
					} else {
						_, err = client.Decrypt(ctx, decryptOf(e))
					}
					cancel()
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		for i := range 1000 {
			work <- i
		}
		close(work)
		wg.Wait()
	}
	storm()
	require.LessOrEqual(t, l.srv.Calls()["token"], 2)
	threads, heap, open := goroutines(t, l), gauge(t, l, "go_memstats_heap_inuse_bytes"), l.srv.OpenConnections()

	l.srv.AddFault(vault.Fault{Op: vault.OpToken, Status: 429})
	storm()
	require.LessOrEqual(t, l.srv.Calls()["token"], 2)
	more := max(0, l.srv.OpenConnections()-open)
	require.LessOrEqual(t, goroutines(t, l), threads+2*more+10, "a connection has two")
	require.LessOrEqual(t, gauge(t, l, "go_memstats_heap_inuse_bytes"), heap+8<<20)
	require.LessOrEqual(t, l.srv.OpenConnections(), 64+2, "as many as there may be calls in flight, and the sign-in host's")
}

// A recorder is a proxy that keeps what it was asked for, and knows the
// emulator's names alone.
type recorder struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
	auth  map[string]bool
}

func newRecorder(t *testing.T, srv *vault.Server) *recorder {
	r := &recorder{auth: map[string]bool{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.asked = append(r.asked, req.Method+" "+req.Host)
		r.auth[req.Header.Get("Proxy-Authorization")] = true
		r.mu.Unlock()
		if req.Method != http.MethodConnect {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		up, err := net.Dial("tcp", srv.Addr())
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer up.Close()
		down, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer down.Close()
		if _, err := io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(up, down)
			up.Close()
		}()
		_, _ = io.Copy(down, up)
	}))
	t.Cleanup(r.CloseClientConnections)
	t.Cleanup(r.Close)
	return r
}

// Case A06: the proxy is for the vault and the sign-in host, however its
// variables are spelled, and what opens it is not logged.
func TestServe_ProxyVariables(t *testing.T) {
	for _, names := range [][]string{{"HTTP_PROXY", "HTTPS_PROXY"}, {"http_proxy", "https_proxy"}} {
		srv, v, version := newVault(t, vault.Config{})
		r := newRecorder(t, srv)
		proxy := strings.Replace(r.URL, "http://", "http://user:PROXYCANARY@", 1)
		dir := shortDir(t)
		_, err := srv.AzureJSON(dir)
		require.NoError(t, err)
		env := []string{"HTTP_PROXY=", "HTTPS_PROXY=", "http_proxy=", "https_proxy=", "NO_PROXY=", "no_proxy=", "SSL_CERT_FILE=" + srv.CAFile()}
		for _, name := range names {
			env = append(env, name+"="+proxy)
		}
		p := prepare(t, dir, env, "--key-version="+version, "-v=10").start(t).serving(t)
		(&lab{process: p, srv: srv, vault: v, version: version}).roundTrip(t)
		r.mu.Lock()
		for _, asked := range r.asked {
			require.Contains(t, []string{"CONNECT kvlab.vault.azure.net:443", "CONNECT login.microsoftonline.com:443"}, asked)
		}
		require.Contains(t, r.asked, "CONNECT login.microsoftonline.com:443")
		require.Equal(t, map[string]bool{"Basic " + base64.StdEncoding.EncodeToString([]byte("user:PROXYCANARY")): true}, r.auth)
		r.mu.Unlock()
		require.NotContains(t, p.stderr.String(), "PROXYCANARY")
	}
}
