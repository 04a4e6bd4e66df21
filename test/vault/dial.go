package vault

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// Transport reaches the service in-process under its real names, with the
// faults of names and connections. Each call makes a new one, with
// connections of its own.
func (s *Server) Transport() *http.Transport {
	return &http.Transport{
		DialContext:         s.DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: s.CertPool(), MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:   s.cfg.HTTP2,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 128,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
	}
}

// DialContext connects to whatever address stands for the host that addr
// names, and fails as its resolver and network would.
func (s *Server) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	host := hostOnly(addr)
	l := s.plan.Load().of(host)
	switch {
	case !mapped(host):
		s.count.refuse(host)
		return nil, s.unresolved(ctx, host, DNSNotFound)
	case !s.exists(host):
		return nil, s.unresolved(ctx, host, DNSNotFound)
	case l.DNS != "":
		return nil, s.unresolved(ctx, host, l.DNS)
	case l.Refuse:
		return nil, &net.OpError{Op: "dial", Net: network, Addr: s.main.addr, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	to := s.main.addr.String()
	if host == metadataHost {
		to = s.proxy.addr.String() // plain HTTP
	}
	if l.Drop {
		var err error
		if to, err = s.blackHole(); err != nil {
			return nil, err
		}
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to)
}

// exists reports whether a name of the service is in DNS.
func (s *Server) exists(host string) bool {
	return isLogin(host) || host == metadataHost || s.lookup(host) != nil
}

func (s *Server) unresolved(ctx context.Context, host string, kind DNSFault) error {
	dns := &net.DNSError{Name: host, Server: "127.0.0.53:53"}
	switch kind {
	case DNSTimeout:
		<-ctx.Done()
		dns.Err, dns.IsTimeout, dns.IsTemporary = "i/o timeout", true, true
		if errors.Is(ctx.Err(), context.Canceled) {
			return ctx.Err()
		}
	case DNSServFail:
		dns.Err, dns.IsTemporary = "server misbehaving", true
	default:
		dns.Err, dns.IsNotFound = "no such host", true
	}
	return &net.OpError{Op: "dial", Net: "tcp", Err: dns}
}

func (s *Server) blackHole() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", net.ErrClosed
	}
	if s.hole == nil {
		hole, err := openBlackHole()
		if err != nil {
			return "", err
		}
		s.hole = hole
	}
	return s.hole.addr(), nil
}
