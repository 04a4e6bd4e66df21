package vault

import (
	"net/http"
	"strings"
)

// forwardHeader tells the forwarding service of the existing plugins' proxy mode
// what a request is for. Source: Azure/kubernetes-kms, proxy mode.
const forwardHeader = "X-Azure-Proxy-Target"

// forwarded reports whether r is for the forwarding service, which is addressed
// as a server; a proxy is sent absolute URLs.
func forwarded(r *http.Request) bool {
	return r.Header.Get(forwardHeader) != "" && r.Method != http.MethodConnect && r.URL.Host == ""
}

// serveForward is that service: plain HTTP, the vault's host as the first part of
// the path, and the sign-in host of the public cloud for everything else.
func (s *Server) serveForward(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	host := clouds[0].login[0]
	switch r.Header.Get(forwardHeader) {
	case "AzureActiveDirectory":
	case "KeyVault":
		first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		host, out.URL.Path, out.URL.RawPath = hostOnly(first), "/"+rest, ""
	default:
		http.Error(w, "the target is neither KeyVault nor AzureActiveDirectory", http.StatusBadRequest)
		return
	}
	if !mapped(host) {
		s.count.refuse(host)
		http.Error(w, "the forwarding service leads to the emulated service only", http.StatusForbidden)
		return
	}
	if s.usable(w, r, host) {
		out.Host = host
		s.serveHost(w, out, host)
	}
}
