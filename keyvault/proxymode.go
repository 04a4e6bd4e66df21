package keyvault

import (
	"errors"
	"net"
	"net/http"
	"strconv"
)

// A ProxyMode sends requests to a forwarding service that is addressed in the
// place of vault and sign-in host, as the --proxy-* flags of the existing
// plugins do: over plain HTTP, with the vault's name as the first part of the
// path and a header that tells the two apart. It changes no key ID. To reach a
// vault through an ordinary proxy, use HTTPS_PROXY.
type ProxyMode struct {
	// Address is a host name or IP address.
	Address string
	Port    int
}

// The header and its values are the forwarding service's protocol.
const (
	forwardHeader  = "x-azure-proxy-target"
	forwardToVault = "KeyVault"
	forwardToLogin = "AzureActiveDirectory"
)

// wrap makes a transport that forwards everything to one kind of target.
func (p *ProxyMode) wrap(rt http.RoundTripper, target string) (http.RoundTripper, error) {
	if p.Address == "" || p.Port < 1 || p.Port > 65535 {
		return nil, errors.New("proxy mode needs an address and a port from 1 to 65535")
	}
	return &forwarder{rt, net.JoinHostPort(p.Address, strconv.Itoa(p.Port)), target}, nil
}

type forwarder struct {
	rt     http.RoundTripper
	addr   string
	target string
}

// RoundTrip implements http.RoundTripper.
func (f *forwarder) RoundTrip(req *http.Request) (*http.Response, error) {
	if isLocal(req.Context()) {
		return f.rt.RoundTrip(req)
	}
	out := req.Clone(req.Context())
	if f.target == forwardToVault {
		out.URL.Path = "/" + req.URL.Host + req.URL.Path
		if req.URL.RawPath != "" {
			out.URL.RawPath = "/" + req.URL.Host + req.URL.RawPath
		}
	}
	out.URL.Scheme, out.URL.Host, out.Host = "http", f.addr, ""
	out.Header.Set(forwardHeader, f.target)
	return f.rt.RoundTrip(out)
}
