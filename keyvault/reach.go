package keyvault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"
)

// A ReachConfig says to whom a way is to be looked at. But for Host the fields are
// those of the Client or Credential whose way it is.
type ReachConfig struct {
	// Host is the vault's name, or that of the sign-in host, with or without a port.
	Host string
	// SignIn says that it is the sign-in host.
	SignIn  bool
	CAFile  string
	RootCAs *x509.CertPool
	Proxy   *ProxyMode
}

// A Reach looks at the way to a host in single steps, each of which goes as the calls
// of a Client do. It sends no token, and keeps no connection.
type Reach struct {
	host, port string
	proxy      *ProxyMode
	rt         http.RoundTripper
	request    string // URL of what anybody may ask
}

// NewReach makes no call.
func NewReach(cfg ReachConfig) (*Reach, error) {
	roots := cfg.RootCAs
	if roots == nil {
		var err error
		if roots, err = loadRoots(cfg.CAFile); err != nil {
			return nil, err
		}
	}
	transport := newTransport(roots)
	transport.DisableKeepAlives = true
	r := &Reach{host: cfg.Host, port: "443", proxy: cfg.Proxy}
	if host, port, err := net.SplitHostPort(cfg.Host); err == nil {
		r.host, r.port = host, port
	}
	target, path := forwardToVault, "/healthstatus"
	if cfg.SignIn {
		target, path = forwardToLogin, "/"
	}
	r.request = "https://" + cfg.Host + path
	var err error
	if r.rt, err = roundTripper(transport, nil, "", cfg.Proxy, target); err != nil {
		return nil, err
	}
	return r, nil
}

// A Via says by whom requests to a host go.
type Via string

// The ways.
const (
	ViaNone    Via = ""          // straight to the host
	ViaProxy   Via = "proxy"     // the one in HTTPS_PROXY, which resolves the host's name itself
	ViaForward Via = "forwarder" // the service of a ProxyMode
)

// A Route is whom a request to a host is sent to at first.
type Route struct {
	Via       Via
	Host      string
	Port      string
	Addresses []string // of Host
}

// Resolve finds the route and the addresses of its first stop. The route is good even
// if the name is not.
func (r *Reach) Resolve(ctx context.Context) (Route, error) {
	route, err := r.route(ctx)
	if err != nil {
		return route, &Error{Op: OpGet, Key: Ref{Host: r.host}, Reason: Unreachable, Cause: CauseProxy, Text: r.host + ": " + err.Error(), Err: err}
	}
	route.Addresses, err = net.DefaultResolver.LookupHost(ctx, route.Host)
	if err != nil {
		return route, r.failure(err)
	}
	return route, nil
}

func (r *Reach) route(ctx context.Context) (Route, error) {
	if r.proxy != nil {
		return Route{Via: ViaForward, Host: r.proxy.Address, Port: strconv.Itoa(r.proxy.Port)}, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.request, nil)
	if err != nil {
		return Route{}, errors.New("no request can be made to this host")
	}
	u, err := proxyFor(req)
	switch {
	case err != nil:
		return Route{}, err
	case u == nil:
		return Route{Host: r.host, Port: r.port}, nil
	}
	return Route{Via: ViaProxy, Host: u.Hostname(), Port: proxyPort(u)}, nil
}

// proxyPort is the port that net/http takes for a proxy.
func proxyPort(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	switch u.Scheme {
	case "https":
		return "443"
	case "socks5", "socks5h":
		return "1080"
	}
	return "80"
}

// Connect connects to the first stop and returns the address that took the connection.
func (r *Reach) Connect(ctx context.Context) (address string, err error) {
	route, err := r.route(ctx)
	if err != nil {
		return "", r.failure(err)
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(route.Host, route.Port))
	if err != nil {
		return "", r.failure(err)
	}
	defer conn.Close()
	return conn.RemoteAddr().String(), nil
}

// An Exchange is an answer to a request that anybody may make.
type Exchange struct {
	Status int
	// Sent and Answered are by this machine's clock; Date is the host's at the answer,
	// zero if it did not tell.
	Sent, Answered time.Time
	Date           time.Time
	// TLS is nil where the way has none.
	TLS *TLS
}

// A TLS is what a host has shown of itself. Certificates are public.
type TLS struct {
	Version string
	// Certificate names subject and issuer; NotAfter is the end of the first
	// certificate of the chain to expire.
	Certificate string
	NotAfter    time.Time
}

// Exchange makes a request that needs no token. Any answer at all is a success.
func (r *Reach) Exchange(ctx context.Context) (Exchange, error) {
	var sent atomic.Int64
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { sent.Store(time.Now().UnixNano()) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.request, nil)
	if err != nil {
		return Exchange{}, r.failure(err)
	}
	resp, err := newTransporter(r.rt).Do(req)
	if err != nil {
		return Exchange{}, r.failure(err)
	}
	x := Exchange{Status: resp.StatusCode, Sent: time.Unix(0, sent.Load()), Answered: time.Now(), TLS: shown(resp.TLS)}
	x.Date, _ = http.ParseTime(resp.Header.Get("Date"))
	_ = resp.Body.Close()
	return x, nil
}

func shown(state *tls.ConnectionState) *TLS {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil
	}
	out := &TLS{Version: tls.VersionName(state.Version), Certificate: described(state.PeerCertificates[0])}
	for _, c := range state.PeerCertificates {
		if out.NotAfter.IsZero() || c.NotAfter.Before(out.NotAfter) {
			out.NotAfter = c.NotAfter
		}
	}
	return out
}

// described names a certificate as people look for it.
func described(c *x509.Certificate) string {
	return fmt.Sprintf("%s, issued by %s", clean(c.Subject.String(), 120), clean(c.Issuer.String(), 120))
}

// failure puts a broken step in words.
func (r *Reach) failure(err error) *Error {
	e := netError(OpGet, Ref{Host: r.host}, err)
	if errors.Is(err, context.Canceled) {
		e.Reason, e.Cause, e.Text = Canceled, CauseNone, r.host+": cancelled"
		return e
	}
	if e.Cause == CauseNone {
		e.Cause, e.Text = CauseTCP, r.host+": the exchange broke off"
	}
	var bad *tls.CertificateVerificationError
	if errors.As(err, &bad) && len(bad.UnverifiedCertificates) > 0 {
		c := bad.UnverifiedCertificates[0]
		e.Text += fmt.Sprintf("; what it shows is %s, until %s", described(c), c.NotAfter.UTC().Format(time.RFC3339))
	}
	return e
}

// SignInHost is whom the credential asks for tokens, with its port if that is another
// than usual; empty if it is a service of this machine.
func (c *Credential) SignInHost() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	authority := c.cfg.Cloud().Authority
	if c.used != nil {
		authority = c.used.authority
	}
	if m, _ := c.cfg.method(); m == methodManaged {
		return ""
	}
	u, err := url.Parse(authority)
	if err != nil {
		return ""
	}
	return u.Host
}
