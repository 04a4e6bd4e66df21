package keyvault

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
)

// A proxyError is a proxy's refusal to connect.
type proxyError struct{ status int }

func (e *proxyError) Error() string {
	return fmt.Sprintf("the proxy in HTTPS_PROXY answers http %d %s: check that proxy, and the name that it was asked for", e.status, http.StatusText(e.status))
}

// A switchError is an answer that leaves HTTP, which nobody has asked for.
type switchError struct{ status int }

func (e *switchError) Error() string {
	return fmt.Sprintf("unexpected response (http %d %s); a proxy may have answered in its place", e.status, http.StatusText(e.status))
}

func isNotFound(err error) bool {
	d, ok := errors.AsType[*net.DNSError](err)
	return ok && d.IsNotFound
}

// netCause says in words why an exchange had no answer. The words hold no URL:
// they name neither key nor proxy credentials.
func netCause(err error) (string, Cause) {
	if p, ok := errors.AsType[*proxyError](err); ok {
		return p.Error(), CauseProxy
	}
	if s, ok := errors.AsType[*switchError](err); ok {
		return s.Error(), CauseProxy
	}
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		switch {
		case d.IsNotFound:
			return "the name " + clean(d.Name, 253) + " does not exist in DNS", CauseDNS
		case d.IsTimeout:
			return "the resolver does not answer for " + clean(d.Name, 253), CauseDNS
		}
		return "the resolver fails for " + clean(d.Name, 253), CauseDNS
	}
	if text, ok := tlsCause(err); ok {
		return text, CauseTLS
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		if op.Op == "proxyconnect" {
			return "the proxy in HTTPS_PROXY cannot be reached: " + opText(op), CauseProxy
		}
		if op.Op == "remote error" {
			return "TLS: the other side ends the handshake", CauseTLS
		}
		if op.Timeout() {
			return "no answer to the connection: " + opText(op), CauseTimeout
		}
		return opText(op), CauseTCP
	}
	switch {
	case errors.Is(err, errBodyTooLarge):
		return errBodyTooLarge.Error(), CauseServer
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed before the whole answer came", CauseTCP
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.EPIPE):
		return "the connection was reset", CauseTCP
	}
	var u *url.Error
	if errors.As(err, &u) && strings.Contains(u.Err.Error(), "http2:") {
		return "the HTTP/2 connection was lost", CauseTCP
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer in time", CauseTimeout
	}
	if errors.As(err, &u) {
		return "the exchange broke off", CauseTCP
	}
	return "", CauseNone
}

// tlsCause names what did not verify. Certificate fields are public.
func tlsCause(err error) (string, bool) {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		alert     tls.AlertError
	)
	switch {
	case errors.As(err, &authority):
		return "TLS: the certificate is signed by an authority that is not trusted here (--ca-file adds one)", true
	case errors.As(err, &host):
		return "TLS: the certificate is for another name", true
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "TLS: the certificate has expired or is not yet valid", true
	case errors.As(err, &invalid):
		return "TLS: the certificate is not valid for this use", true
	case errors.As(err, &record):
		return "TLS: the other side does not speak TLS", true
	case errors.As(err, &alert):
		return "TLS: " + clean(alert.Error(), 80), true
	}
	if v, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "TLS: " + clean(v.Err.Error(), 120), true
	}
	if strings.Contains(err.Error(), "tls: ") {
		_, text, _ := strings.Cut(err.Error(), "tls: ")
		return "TLS: " + clean(text, 120), true
	}
	if strings.Contains(err.Error(), "TLS handshake timeout") {
		return "TLS: the handshake is not answered", true
	}
	return "", false
}

// opText is the operation and errno of a network error, without addresses.
func opText(op *net.OpError) string {
	verb := map[string]string{"dial": "connecting", "read": "reading", "write": "writing", "proxyconnect": "connecting"}[op.Op]
	if verb == "" {
		verb = clean(op.Op, 20)
	}
	if errno, ok := errors.AsType[syscall.Errno](op.Err); ok {
		return verb + ": " + errno.Error()
	}
	if op.Timeout() {
		return verb + ": timed out"
	}
	return verb + ": " + clean(op.Err.Error(), 80)
}

// clean cuts text that came from outside to n printable ASCII characters.
func clean(s string, n int) string {
	out := make([]byte, 0, min(len(s), n))
	for i := 0; i < len(s) && len(out) < n; i++ {
		if s[i] >= ' ' && s[i] <= '~' {
			out = append(out, s[i])
		}
	}
	return string(out)
}
