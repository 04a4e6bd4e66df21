package vault

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// AddFault puts a fault in force until it is used up or removed. It panics on
// what Fault.Validate refuses: a test with a wrong fault tests nothing.
func (s *Server) AddFault(f Fault) FaultID {
	id, err := s.TryFault(f)
	if err != nil {
		panic(err)
	}
	return id
}

// TryFault is AddFault with an error.
func (s *Server) TryFault(f Fault) (FaultID, error) {
	f.Host = s.fullHost(f.Host)
	if err := f.Validate(); err != nil {
		return 0, fmt.Errorf("fault: %w", err)
	}
	id := s.faults.add(f)
	if f.ofConnection() {
		return id, s.replan()
	}
	return id, nil
}

// fullHost makes a host name of a vault's name.
func (s *Server) fullHost(host string) string {
	host = strings.ToLower(host)
	if host == "" || host == "identity" || strings.Contains(host, ".") {
		return host
	}
	if hsm := host + "." + clouds[0].hsm; s.lookup(hsm) != nil {
		return hsm
	}
	return host + "." + clouds[0].vault
}

// RemoveFault ends a fault. Calls that hang because of it go on hanging.
func (s *Server) RemoveFault(id FaultID) {
	if id != 0 && s.faults.remove(id) {
		s.mustReplan()
	}
}

// ClearFaults ends all faults.
func (s *Server) ClearFaults() {
	if s.faults.remove(0) {
		s.mustReplan()
	}
}

// Faults returns the faults in force.
func (s *Server) Faults() map[FaultID]Fault { return s.faults.all() }

func (s *Server) mustReplan() {
	if err := s.replan(); err != nil {
		panic(err) // the port is held meanwhile, so this is the machine's fault
	}
}

// replan puts the connection faults in force into effect.
func (s *Server) replan() error {
	s.planMu.Lock()
	defer s.planMu.Unlock()
	p := newPlan(s.faults.all())
	old := s.plan.Swap(p)
	close(old.replaced)
	err := s.main.set(p.all.Refuse, p.all.Drop)
	if err == nil {
		err = s.proxy.set(p.all.Refuse, p.all.Drop)
	}
	// What is open now feels it too.
	any := func(*conn) bool { return true }
	if p.all.Refuse {
		s.main.each(any, (*conn).reset)
		s.proxy.each(any, (*conn).reset)
	}
	s.main.each(func(c *conn) bool { return p.of(c.name()).Refuse }, (*conn).reset)
	s.main.each(func(c *conn) bool {
		l, before := p.of(c.name()), old.of(c.name())
		return l.TLS != before.TLS || l.DNS != before.DNS
	}, (*conn).retire)
	return err
}

// Calls counts the calls since the start or ResetCalls, by operation.
func (s *Server) Calls() map[string]int { return s.count.calls() }

// Count counts the calls that match.
func (s *Server) Count(m Match) int {
	m.Host = s.fullHost(m.Host)
	return s.count.count(m)
}

// Requests returns the last Config.KeepRequests requests, oldest first.
func (s *Server) Requests() []Request { return s.count.requests() }

// ResetCalls sets all counts but those of connections to zero.
func (s *Server) ResetCalls() { s.count.reset() }

// Connections is how many TLS connections began since the start.
func (s *Server) Connections() int {
	sum := 0
	for n := range maps.Values(s.count.connectionsByHost()) {
		sum += n
	}
	return sum
}

// ConnectionsTo counts those that asked for one host.
func (s *Server) ConnectionsTo(host string) int {
	return s.count.connectionsByHost()[s.fullHost(host)]
}

// OpenConnections is how many connections to the service are open now.
func (s *Server) OpenConnections() int {
	s.main.mu.Lock()
	defer s.main.mu.Unlock()
	return len(s.main.conns)
}

// InFlight is how many calls are being served now, and the most since the
// start or ResetCalls.
func (s *Server) InFlight() (now, most int) { return s.count.flight() }

// TokensIssued counts the tokens handed out.
func (s *Server) TokensIssued() int { return s.count.tokensIssued() }

// Refused lists the hosts outside the service that somebody tried to reach.
func (s *Server) Refused() []string { return s.count.refusedHosts() }

// RevokeTokens makes every token worthless.
func (s *Server) RevokeTokens() { s.dir.revoke("") }

// RevokeTokensOf makes a principal's tokens worthless.
func (s *Server) RevokeTokensOf(clientID string) { s.dir.revoke(clientID) }

// SetTokenLifetime changes how long tokens issued from now on last.
func (s *Server) SetTokenLifetime(d time.Duration) { s.dir.setLifetime(d) }

// AddPrincipal adds a principal, or replaces one.
func (s *Server) AddPrincipal(p Principal) error {
	if p.ClientID == "" {
		return fmt.Errorf("a principal needs a client ID")
	}
	if p.TenantID == "" {
		p.TenantID = s.TenantID
	}
	if p.ObjectID == "" {
		p.ObjectID = randomGUID()
	}
	p.Secrets, p.Assertions = slices.Clone(p.Secrets), slices.Clone(p.Assertions)
	p.Certificates, p.Issuers = slices.Clone(p.Certificates), slices.Clone(p.Issuers)
	s.dir.put(p)
	return nil
}

// SetSecrets changes which client secrets of a principal are good.
func (s *Server) SetSecrets(clientID string, secrets ...string) error {
	return s.changePrincipal(clientID, func(p *Principal) { p.Secrets = slices.Clone(secrets) })
}

// SetAssertions changes which federated tokens of a principal are accepted.
func (s *Server) SetAssertions(clientID string, assertions ...string) error {
	return s.changePrincipal(clientID, func(p *Principal) { p.Assertions = slices.Clone(assertions) })
}

func (s *Server) changePrincipal(clientID string, do func(*Principal)) error {
	p := s.dir.principal(clientID)
	if p == nil {
		return fmt.Errorf("%q is not a principal", clientID)
	}
	do(p)
	s.dir.put(*p)
	return nil
}

// SetIdentities says which managed identities the machine has. At first it
// has a system-assigned one, with the default principal's client ID.
func (s *Server) SetIdentities(ids ...Identity) {
	for i := range ids {
		if ids[i].ObjectID == "" {
			ids[i].ObjectID = randomGUID()
		}
		if s.dir.principal(ids[i].ClientID) == nil {
			s.dir.put(Principal{ClientID: ids[i].ClientID, TenantID: s.TenantID, ObjectID: ids[i].ObjectID})
		}
	}
	s.dir.setIdentities(ids)
}
