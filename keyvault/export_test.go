package keyvault

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
)

// TransportTo is the transport of production, but for the address that every
// name leads to.
func TransportTo(addr string, roots *x509.CertPool) *http.Transport {
	t := newTransport(roots)
	t.Proxy = nil
	t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) { return dial(ctx, network, addr) }
	return t
}

// ResolvingTransport is the transport of production without a proxy.
func ResolvingTransport() *http.Transport {
	t := newTransport(nil)
	t.Proxy = nil
	return t
}

// ProxyFor tells which proxy the transport would take.
var ProxyFor = proxyFor

// KnownIDs is how many key IDs a keyring remembers.
func KnownIDs(k *Keyring) int { return k.lookup.known.len() }
