package vault_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"azure-kms-plugin/test/vault"
	"github.com/stretchr/testify/require"
)

func TestHandshakesFail(t *testing.T) {
	t.Run("HTTP/1.1", func(t *testing.T) { handshakesFail(t, newRig(t, vault.Config{})) })
	t.Run("HTTP/2", func(t *testing.T) { handshakesFail(t, newRig(t, vault.Config{HTTP2: true})) })
}

func handshakesFail(t *testing.T, r *rig) {
	t.Helper()
	require.Equal(t, 200, r.status(t, ""), "a connection is open")
	for fault, check := range map[vault.TLSFault]func(error) bool{
		vault.TLSUntrusted: func(err error) bool { _, ok := errors.AsType[x509.UnknownAuthorityError](err); return ok },
		vault.TLSWrongName: func(err error) bool { _, ok := errors.AsType[x509.HostnameError](err); return ok },
		vault.TLSExpired: func(err error) bool {
			e, ok := errors.AsType[x509.CertificateInvalidError](err)
			return ok && e.Reason == x509.Expired
		},
		vault.TLSOld: func(err error) bool { return strings.Contains(err.Error(), "protocol version") },
		vault.TLSAlert: func(err error) bool {
			_, ok := errors.AsType[tls.AlertError](err)
			return ok || strings.Contains(err.Error(), "tls:")
		},
	} {
		id := r.srv.AddFault(vault.Fault{Host: "kvlab", TLS: fault})
		// A client of HTTP/2 may still try the connection that has just been closed.
		var err error
		require.Eventually(t, func() bool {
			_, _, err = r.get(t.Context(), "")
			return err != nil && check(err)
		}, 5*time.Second, time.Millisecond, "%s: %v", fault, err)
		tokenFor(t, r.srv, r.hc, "https://vault.azure.net") // another host
		r.srv.RemoveFault(id)
		require.Equal(t, 200, r.status(t, ""), fault)
	}
}

func TestNamesDoNotResolve(t *testing.T) {
	r := newRig(t, vault.Config{})
	require.Equal(t, 200, r.status(t, ""))
	byProxy := &http.Client{Transport: proxied(t, r.srv)}
	for kind, check := range map[vault.DNSFault]func(*net.DNSError) bool{
		vault.DNSNotFound: func(e *net.DNSError) bool { return e.IsNotFound },
		vault.DNSServFail: func(e *net.DNSError) bool { return e.IsTemporary && !e.IsNotFound && !e.IsTimeout },
	} {
		id := r.srv.AddFault(vault.Fault{Host: "kvlab", DNS: kind})
		_, _, err := r.get(t.Context(), "")
		dns, ok := errors.AsType[*net.DNSError](err)
		require.True(t, ok, "%s: %v", kind, err)
		require.True(t, check(dns), "%s: %+v", kind, dns)
		_, err = byProxy.Get(r.v.URL() + "/healthstatus")
		require.ErrorContains(t, err, "Bad Gateway")
		r.srv.RemoveFault(id)
	}
	id := r.srv.AddFault(vault.Fault{DNS: vault.DNSTimeout, Delay: 50 * time.Millisecond})
	_, _, err := r.get(soon(t), "")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = byProxy.Get(r.v.URL() + "/healthstatus")
	require.ErrorContains(t, err, "Gateway Timeout")
	r.srv.RemoveFault(id)
	require.Equal(t, 200, r.status(t, ""))

	// A vault that was never made, one that was purged, and what is not ours.
	_, err = r.hc.Get("https://kvnone.vault.azure.net/healthstatus")
	dns, ok := errors.AsType[*net.DNSError](err)
	require.True(t, ok)
	require.True(t, dns.IsNotFound)
	r.srv.RemoveVault(r.v.Host())
	require.Eventually(t, func() bool { _, _, err := r.get(t.Context(), ""); return err != nil }, 5*time.Second, 5*time.Millisecond)
	_, err = r.hc.Get("https://example.com/")
	require.Error(t, err)
	require.Equal(t, []string{"example.com"}, r.srv.Refused())
}

func TestConnectionsAreRefused(t *testing.T) {
	r := newRig(t, vault.Config{})
	byProxy := &http.Client{Transport: proxied(t, r.srv)}
	require.Equal(t, 200, r.status(t, ""))
	healthy := func() error {
		res, err := byProxy.Get(r.v.URL() + "/healthstatus")
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	require.NoError(t, healthy())
	refused := func(err error) bool {
		return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
	}
	gone := func(name string, try func() error) {
		t.Helper()
		// The first call may still meet the connection that was just broken.
		var err error
		require.Eventually(t, func() bool { err = try(); return errors.Is(err, syscall.ECONNREFUSED) }, 5*time.Second, 5*time.Millisecond, "%s: %v", name, err)
		require.True(t, refused(err))
	}

	id := r.srv.AddFault(vault.Fault{Refuse: true})
	gone("transport", func() error { _, _, err := r.get(t.Context(), ""); return err })
	gone("proxy", healthy)
	gone("address", func() error { _, err := net.Dial("tcp", r.srv.Addr()); return err })
	r.srv.RemoveFault(id)
	require.Equal(t, 200, r.status(t, ""), "the same address serves again")
	require.NoError(t, healthy())

	r.srv.AddFault(vault.Fault{Host: "kvlab", Refuse: true})
	gone("transport", func() error { _, _, err := r.get(t.Context(), ""); return err })
	require.Eventually(t, func() bool { err := healthy(); return err != nil && strings.Contains(err.Error(), "Bad Gateway") }, 5*time.Second, 5*time.Millisecond)
	_, err := tls.Dial("tcp", r.srv.Addr(), &tls.Config{ServerName: "kvlab.vault.azure.net", RootCAs: r.srv.CertPool()})
	require.ErrorIs(t, err, syscall.ECONNRESET, "who asks the listener for that name is reset")
	tokenFor(t, r.srv, r.hc, "https://vault.azure.net")
	r.srv.ClearFaults()
	require.Equal(t, 200, r.status(t, ""))
	require.NoError(t, healthy())
}

func TestPacketsAreDropped(t *testing.T) {
	for name, host := range map[string]string{"everything": "", "one host": "kvlab"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, vault.Config{})
			require.Equal(t, 200, r.status(t, ""), "a connection is open")
			fresh := &http.Client{Transport: r.srv.Transport()}
			byProxy := &http.Client{Transport: proxied(t, r.srv)}
			ask := func(hc *http.Client, ctx context.Context) error {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.v.URL()+"/healthstatus", nil)
				require.NoError(t, err)
				res, err := hc.Do(req)
				if err == nil {
					res.Body.Close()
				}
				return err
			}
			id := r.srv.AddFault(vault.Fault{Host: host, Drop: true})
			_, _, err := r.get(soon(t), "")
			require.ErrorIs(t, err, context.DeadlineExceeded, "what is open stands still")
			require.ErrorIs(t, ask(fresh, soon(t)), context.DeadlineExceeded, "nothing new comes through")
			require.ErrorIs(t, ask(byProxy, soon(t)), context.DeadlineExceeded, "nor by the proxy")
			dialer := net.Dialer{Timeout: 200 * time.Millisecond}
			conn, err := dialer.DialContext(t.Context(), "tcp", r.srv.Addr())
			if host == "" {
				var ne net.Error
				require.ErrorAs(t, err, &ne)
				require.True(t, ne.Timeout(), "not even a SYN is answered: %v", err)
			} else {
				require.NoError(t, err)
				conn.Close()
				tokenFor(t, r.srv, r.hc, "https://vault.azure.net")
			}
			waits := make(chan error, 1)
			patient := &http.Client{Transport: proxied(t, r.srv)}
			if host != "" {
				go func() { waits <- ask(patient, t.Context()) }()
			} else {
				waits <- nil
			}
			r.srv.RemoveFault(id)
			require.NoError(t, <-waits, "what waits goes on")
			require.NoError(t, ask(byProxy, t.Context()))
			require.NoError(t, ask(fresh, t.Context()))
			require.Equal(t, 200, r.status(t, ""))
		})
	}
}
