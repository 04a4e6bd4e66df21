package keyvault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	// dialTimeout bounds one TCP handshake. An Azure front end answers in
	// milliseconds; a dropped SYN must leave time for another try within 3 s.
	dialTimeout = time.Second
	// unackedTimeout is how long sent bytes may stay unacknowledged. It turns a
	// pooled connection that a firewall has silently dropped into an error that
	// is retried, instead of a wait for the caller's deadline.
	unackedTimeout = 1500 * time.Millisecond
	// maxBody bounds a response. The largest real one, a page of versions, has
	// some 10 KiB.
	maxBody = 1 << 20
)

// errBodyTooLarge ends the reading of a response that no vault would send.
var errBodyTooLarge = fmt.Errorf("the response has more than %d bytes", maxBody)

// newTransport makes the HTTP transport of vault calls and sign-ins.
func newTransport(roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		Proxy:       proxyFor,
		DialContext: dial,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			RootCAs:    roots,
		},
		TLSHandshakeTimeout: 5 * time.Second,
		ForceAttemptHTTP2:   true,
		// As many as there may be calls in flight: a smaller pool closes and
		// reopens connections under load.
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 2 * maxInFlight,
		// Longer than the time between two probes, so that a connection is warm
		// when kube-apiserver calls.
		IdleConnTimeout:        3 * time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
		// Behind a proxy the socket option sees only the way to the proxy.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 5 * time.Second},
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
			if resp.StatusCode != http.StatusOK {
				return &proxyError{status: resp.StatusCode}
			}
			return nil
		},
	}
}

type localKey struct{}

// local marks the requests made under ctx as those to a service of this machine,
// wherever it listens: one that gives out the tokens of a managed identity. By way
// of a proxy another machine would answer, and learn the secret that some want.
func local(ctx context.Context) context.Context { return context.WithValue(ctx, localKey{}, true) }

func isLocal(ctx context.Context) bool { return ctx.Value(localKey{}) != nil }

// proxyFor honours HTTPS_PROXY and NO_PROXY, but never for a local service.
func proxyFor(req *http.Request) (*url.URL, error) {
	if isLocal(req.Context()) {
		return nil, nil
	}
	u, err := http.ProxyFromEnvironment(req)
	if err != nil {
		// The error quotes the variable, which may hold a password.
		return nil, errors.New("the proxy in HTTPS_PROXY or HTTP_PROXY is not a valid URL")
	}
	return u, nil
}

// dial resolves first and then tries each address with its own time, so that a
// slow resolver is not mistaken for a dead vault, nor cut off like one.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	tr := traceOf(ctx)
	tr.resolve(host)
	addrs, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	tr.resolve("")
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Control: setSocketOptions}
	var first error
	for _, a := range addrs[:min(len(addrs), 4)] {
		conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(a, port))
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// loadRoots adds a CA file to the system's roots; "" means the system's alone.
func loadRoots(caFile string) (*x509.CertPool, error) {
	if caFile == "" {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	return pool, addRoots(pool, caFile)
}

// CheckCAFile reports why a file adds no authority.
func CheckCAFile(path string) error { return addRoots(x509.NewCertPool(), path) }

func addRoots(pool *x509.CertPool, path string) error {
	pem, err := readFile(path, maxConfigSize)
	if err != nil {
		return err
	}
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no PEM certificate", path)
	}
	return nil
}

// A transporter sends requests for the SDK: no redirect is followed, no
// response is larger than maxBody, and the call's trace learns what happened.
type transporter struct{ client *http.Client }

func newTransporter(rt http.RoundTripper) *transporter {
	return &transporter{&http.Client{
		Transport: rt,
		// A redirect could lead a token or a seed to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Do implements policy.Transporter.
func (t *transporter) Do(req *http.Request) (*http.Response, error) {
	tr := traceOf(req.Context())
	tr.begin(req.URL.Hostname())
	resp, err := t.client.Do(req.WithContext(tr.watched(req.Context())))
	if err != nil {
		// The end of the call's own time is no cause: the exchange was pending.
		if req.Context().Err() == nil {
			tr.end(0, err)
		}
		return nil, err
	}
	if resp.StatusCode < 200 {
		// Its body is the connection itself, which ends with nobody's context.
		_ = resp.Body.Close()
		err := &switchError{status: resp.StatusCode}
		tr.end(0, err)
		return nil, err
	}
	body := &boundedBody{body: resp.Body, left: maxBody, ctx: req.Context(), status: resp.StatusCode}
	// No read may outlive the call, whatever the body is made of.
	body.stop = context.AfterFunc(req.Context(), func() { _ = body.body.Close() })
	resp.Body = body
	return resp, nil
}

// A boundedBody is a response body that ends in an error past its bound.
type boundedBody struct {
	body   io.ReadCloser
	left   int64
	ctx    context.Context
	status int
	stop   func() bool // ends the watch over ctx
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		traceOf(b.ctx).end(b.status, errBodyTooLarge)
		return 0, errBodyTooLarge
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.body.Read(p)
	b.left -= int64(n)
	switch {
	case errors.Is(err, io.EOF):
		traceOf(b.ctx).end(b.status, nil)
	case err != nil && b.ctx.Err() == nil:
		traceOf(b.ctx).end(b.status, err)
	}
	return n, err
}

func (b *boundedBody) Close() error {
	b.stop()
	return b.body.Close()
}
