package vault

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Server is the emulated service: vaults, Managed HSMs, token endpoints and
// the metadata service behind one listener, a proxy and an admin port.
type Server struct {
	// TenantID, ClientID and ClientSecret are the default principal's.
	TenantID, ClientID, ClientSecret string

	cfg            Config
	ca             *authority
	dir            *directory
	count          *counter
	faults         faults
	plan           atomic.Pointer[plan]
	planMu         sync.Mutex // serializes changes of the plan
	skew           atomic.Int64
	identityHeader string
	tempDir        string

	main, proxy *gate
	admin       net.Listener
	servers     []*http.Server
	served      sync.WaitGroup
	stop        context.CancelFunc // ends what is being served

	mu     sync.Mutex
	vaults map[string]*Vault // by host
	order  []*Vault
	hole   *blackHole
	closed bool
}

// Start begins to serve.
func Start(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("emulator configuration: %w", err)
	}
	s := &Server{
		TenantID: cfg.TenantID, ClientID: cfg.ClientID, ClientSecret: cfg.ClientSecret,
		cfg: cfg, dir: newDirectory(cfg.TokenLifetime), count: newCounter(cfg.KeepRequests),
		vaults: map[string]*Vault{}, identityHeader: randomText(16),
	}
	s.plan.Store(newPlan(nil))
	s.dir.put(Principal{ClientID: cfg.ClientID, TenantID: cfg.TenantID, ObjectID: randomGUID(), Secrets: []string{cfg.ClientSecret}})
	s.dir.setIdentities([]Identity{{ClientID: cfg.ClientID, ObjectID: s.dir.principal(cfg.ClientID).ObjectID, System: true}})
	if s.ca, err = newAuthority(); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// open makes the files and listeners and serves.
func (s *Server) open() error {
	var err error
	if s.tempDir, err = os.MkdirTemp("", "vault-emulator-"); err != nil {
		return err
	}
	if err := os.WriteFile(s.CAFile(), s.ca.pem(), 0o644); err != nil {
		return err
	}
	if s.main, err = openGate(s.cfg.Listen, s.plan.Load); err != nil {
		return err
	}
	if s.proxy, err = openGate(s.cfg.ProxyListen, s.plan.Load); err != nil {
		return err
	}
	if s.admin, err = net.Listen("tcp", s.cfg.AdminListen); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(s.cfg.HTTP2)
	service := s.newHTTPServer(ctx, s)
	service.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: s.greet}
	service.Protocols = &protocols
	service.ConnState = connState
	proxy := s.newHTTPServer(ctx, http.HandlerFunc(s.serveProxy))
	admin := s.newHTTPServer(ctx, s.adminHandler())
	s.servers = []*http.Server{service, proxy, admin}
	// GetConfigForClient replaces the whole configuration, so net/http must
	// find the protocols in it; it asks for a certificate before any client.
	service.TLSConfig.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return s.ca.leaf(h.ServerName, "") }
	s.served.Go(func() { service.ServeTLS(s.main, "", "") })
	s.served.Go(func() { proxy.Serve(s.proxy) })
	s.served.Go(func() { admin.Serve(s.admin) })
	return nil
}

func (s *Server) newHTTPServer(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler:  h,
		ErrorLog: log.New(io.Discard, "", 0), // broken handshakes and connections are what this is for
		BaseContext: func(net.Listener) context.Context {
			return ctx
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			return context.WithValue(ctx, connKey{}, c)
		},
	}
}

// greet is called with every ClientHello.
func (s *Server) greet(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	name := strings.ToLower(hello.ServerName)
	if name == "" {
		name = "localhost"
	}
	s.count.connected(name)
	c, ok := hello.Conn.(*conn)
	if !ok {
		return nil, errors.New("not one of our connections")
	}
	c.host.Store(&name)
	l := s.plan.Load().of(name)
	switch {
	case l.Refuse:
		c.reset()
		return nil, errors.New("refused")
	case l.TLS == TLSAlert:
		return nil, errors.New("the fault says so")
	}
	cert, err := s.ca.leaf(name, l.TLS)
	if err != nil {
		return nil, err
	}
	if l.TLS == TLSOld {
		return &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, Certificates: []tls.Certificate{*cert}}, nil
	}
	protos := []string{"http/1.1"}
	if s.cfg.HTTP2 {
		protos = []string{"h2", "http/1.1"}
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protos, Certificates: []tls.Certificate{*cert},
		SessionTicketsDisabled: true, // every connection is a full handshake, and sees the faults
	}, nil
}

// Close ends everything and waits for it.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.hole != nil {
		s.hole.close()
	}
	s.mu.Unlock()
	if s.stop != nil {
		s.stop()
	}
	for _, g := range []*gate{s.main, s.proxy} {
		if g != nil {
			g.Close()
		}
	}
	if s.admin != nil {
		s.admin.Close()
	}
	for _, srv := range s.servers {
		srv.Close()
	}
	s.served.Wait()
	if s.tempDir == "" {
		return nil
	}
	return os.RemoveAll(s.tempDir)
}

// ServeHTTP is the service itself, chosen by host.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host := hostOnly(r.Host)
	if !mapped(host) && r.TLS != nil {
		host = strings.ToLower(r.TLS.ServerName)
	}
	s.serveHost(w, r, host)
}

// serveHost serves a request as the named host would.
func (s *Server) serveHost(w http.ResponseWriter, r *http.Request, host string) {
	switch {
	case isLogin(host):
		s.serveLogin(w, r, host)
	case s.lookup(host) != nil:
		s.lookup(host).serve(w, r)
	case !mapped(host) && s.only() != nil:
		// Somebody dialled the address itself.
		s.only().serve(w, r)
	default:
		http.Error(w, "no such vault", http.StatusNotFound)
	}
}

func (s *Server) lookup(host string) *Vault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vaults[host]
}

// only returns the one vault there is.
func (s *Server) only() *Vault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) != 1 {
		return nil
	}
	return s.order[0]
}

// now is the emulator's clock.
func (s *Server) now() time.Time { return s.cfg.Now().Add(time.Duration(s.skew.Load())) }

// AdvanceClock moves the emulator's clock on, beyond the configured one.
func (s *Server) AdvanceClock(d time.Duration) { s.skew.Add(int64(d)) }

func (s *Server) newCall(r *http.Request, host string, op Op) *call {
	return &call{Request{
		Time: s.now(), Host: host, Method: r.Method, Path: r.URL.Path, Op: op, UserAgent: r.UserAgent(),
	}}
}
