package vault

import (
	"io"
	"net"
	"net/http"
	"time"
)

// serveProxy is an HTTP proxy that knows only the service's names, and the
// forwarding service of proxy mode.
func (s *Server) serveProxy(w http.ResponseWriter, r *http.Request) {
	host := hostOnly(r.Host)
	switch {
	case forwarded(r):
		s.serveForward(w, r)
	case !mapped(host):
		s.count.refuse(r.Host)
		http.Error(w, "the proxy leads to the emulated service only", http.StatusForbidden)
	case r.Method == http.MethodConnect:
		s.tunnel(w, r, host)
	case host == metadataHost:
		if s.usable(w, r, host) {
			s.serveIMDS(w, r)
		}
	default:
		http.Error(w, "the service speaks HTTPS only", http.StatusForbidden)
	}
}

// usable plays the faults of a name's resolution and connection, and reports
// whether there is none.
func (s *Server) usable(w http.ResponseWriter, r *http.Request, host string) bool {
	p := s.plan.Load()
	l := p.of(host)
	for l.Drop {
		// As with a SYN that is sent again, what waits goes on when the fault ends.
		select {
		case <-p.replaced:
			p = s.plan.Load()
			l = p.of(host)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	switch {
	case !s.exists(host), l.DNS == DNSNotFound:
		http.Error(w, "cannot resolve the host: no such name", http.StatusBadGateway)
	case l.DNS == DNSServFail:
		http.Error(w, "cannot resolve the host: server failure", http.StatusBadGateway)
	case l.DNS == DNSTimeout:
		wait := l.fault.Delay
		if wait == 0 {
			wait = 5 * time.Second
		}
		if !s.pause(r.Context(), wait) {
			panic(http.ErrAbortHandler)
		}
		http.Error(w, "cannot resolve the host: the resolver does not answer", http.StatusGatewayTimeout)
	case l.Refuse:
		http.Error(w, "cannot connect to the host: connection refused", http.StatusBadGateway)
	default:
		return true
	}
	return false
}

// tunnel joins the client to the service.
func (s *Server) tunnel(w http.ResponseWriter, r *http.Request, host string) {
	if !s.usable(w, r, host) {
		return
	}
	up, err := net.DialTimeout("tcp", s.main.addr.String(), 5*time.Second)
	if err != nil {
		http.Error(w, "cannot connect to the host", http.StatusBadGateway)
		return
	}
	defer up.Close()
	down, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	if _, err := io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	done := make(chan error, 2)
	go func() {
		_, err := io.Copy(up, buffered)
		up.(*net.TCPConn).CloseWrite()
		done <- err
	}()
	go func() {
		_, err := io.Copy(down, up)
		if c, ok := down.(*conn); ok && s.main.wasReset(up.LocalAddr()) {
			c.reset() // the client must see what the service did
		}
		done <- err
		down.Close()
	}()
	<-done
	<-done
}
