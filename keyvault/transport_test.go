package keyvault_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/stretchr/testify/require"
)

// The body of a 101 is the connection, whose reads end with no context.
func TestTransport_SwitchingProtocolsEndsTheCall(t *testing.T) {
	open := make(chan struct{})
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", newWeb().challenge)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
		<-open
		_ = conn.Close()
	}))
	defer srv.Close()
	defer close(open)
	rt := keyvault.TransportTo(srv.Listener.Addr().String(), nil)
	rt.TLSClientConfig.InsecureSkipVerify = true
	defer rt.CloseIdleConnections()
	c, _ := newClient(t, rt, &bank{})
	ended := make(chan error, 1)
	go func() {
		_, err := c.Decrypt(within(t, 2*time.Second), key1, []byte("block"))
		ended <- err
	}()
	select {
	case err := <-ended:
		e := failure(t, err)
		require.Equal(t, keyvault.Unreachable, e.Reason)
		require.Equal(t, keyvault.CauseProxy, e.Cause)
		require.Contains(t, e.Text, "101")
	case <-time.After(10 * time.Second):
		t.Fatal("the call outlives its deadline")
	}
}

// A stuckBody blocks its reader until it is closed.
type stuckBody struct {
	once   sync.Once
	closed chan struct{}
}

func (b *stuckBody) Read([]byte) (int, error) { <-b.closed; return 0, io.ErrUnexpectedEOF }
func (b *stuckBody) Close() error             { b.once.Do(func() { close(b.closed) }); return nil }

func TestTransport_NoReadOutlivesTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		var bodies []*stuckBody
		w.answer = func(r request) (*http.Response, error) {
			resp, body := reply(r.http, 200, ""), &stuckBody{closed: make(chan struct{})}
			bodies = append(bodies, body)
			context.AfterFunc(t.Context(), func() { _ = body.Close() }) // lets a failing test end
			resp.Body, resp.ContentLength = body, -1
			return resp, nil
		}
		c, _ := newClient(t, w, &bank{})
		kr, err := keyvault.NewPinned(keyvault.KeyringConfig{Vault: c, Write: key1})
		require.NoError(t, err)
		_, _, err = kr.Decrypt(within(t, 3*time.Second), key1.KeyID(), "", []byte("block"))
		e := failure(t, err)
		require.Equal(t, keyvault.Unreachable, e.Reason)
		require.Equal(t, keyvault.CauseTimeout, e.Cause)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, bodies, 1)
		select {
		case <-bodies[0].closed:
		default:
			t.Fatal("the call is still reading")
		}
		w.answer = nil
		_, _, err = kr.Decrypt(within(t, 3*time.Second), key1.KeyID(), "", []byte("block"))
		require.NoError(t, err, "no flight is left that others would join")
	})
}

// As the volumes of Kubernetes have them.
func TestCheckCAFile_MayBeALink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "link.pem")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	require.NoError(t, os.Symlink(file, link))
	require.ErrorContains(t, keyvault.CheckCAFile(link), "holds no PEM certificate")
	srv, err := vault.Start(vault.Config{})
	require.NoError(t, err)
	defer srv.Close()
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(srv.CAFile(), link))
	require.NoError(t, keyvault.CheckCAFile(link))
}
