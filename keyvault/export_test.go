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

// Local and IsLocal mark requests to a service of this machine.
var (
	Local   = local
	IsLocal = isLocal
)

// HangFiles has every look at the files of c last until the returned function is
// called, as on a file system that hangs.
func HangFiles(c *Credential) (release func()) {
	c.looks <- struct{}{}
	return func() { <-c.looks }
}

// Look has a look at the files of c come to whatever look does.
func Look(c *Credential, look func()) error {
	return c.patiently(func() reading { look(); return reading{} }).err
}

// Audiences is how many audiences a client remembers.
func Audiences(c *Client) int {
	tokens := c.options.PerRetryPolicies[0].(*authPolicy).tokens
	tokens.mu.Lock()
	defer tokens.mu.Unlock()
	return len(tokens.entries)
}

// KnownIDs is how many key IDs a keyring remembers.
func KnownIDs(k *Keyring) int { return k.lookup.known.len() }
