package vault

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// adminHandler is the JSON API of the package documentation.
func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, do func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			out, err := do(r)
			w.Header().Set("Content-Type", "application/json")
			if err != nil {
				w.WriteHeader(adminStatus(err))
				out = map[string]string{"error": err.Error()}
			} else if out == nil {
				out = struct{}{}
			}
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			e.Encode(out) // the client may have left
		})
	}
	handle("GET /{$}", s.adminState)
	handle("POST /vaults/{host}", func(r *http.Request) (any, error) { return nil, second(s.VaultAt(s.fullHost(r.PathValue("host")))) })
	handle("PATCH /vaults/{host}", s.adminPatchVault)
	handle("DELETE /vaults/{host}", func(r *http.Request) (any, error) {
		_, err := s.adminVault(r)
		s.RemoveVault(s.fullHost(r.PathValue("host")))
		return nil, err
	})
	handle("PUT /vaults/{host}/access/{principal}", s.adminAllow)
	handle("GET /vaults/{host}/keys/{name}", s.adminVersions)
	handle("POST /vaults/{host}/keys/{name}", s.adminCreateKey)
	handle("PATCH /vaults/{host}/keys/{name}/{version}", s.adminPatchKey)
	for verb, do := range map[string]func(*Vault, string) error{
		"delete": (*Vault).DeleteKey, "recover": (*Vault).RecoverKey, "purge": (*Vault).PurgeKey,
	} {
		handle("POST /vaults/{host}/keys/{name}/"+verb, func(r *http.Request) (any, error) {
			v, err := s.adminVault(r)
			if err != nil {
				return nil, err
			}
			return nil, do(v, r.PathValue("name"))
		})
	}
	handle("GET /faults", func(*http.Request) (any, error) { return s.Faults(), nil })
	handle("POST /faults", s.adminAddFault)
	handle("DELETE /faults", func(*http.Request) (any, error) { s.ClearFaults(); return nil, nil })
	handle("DELETE /faults/{id}", s.adminRemoveFault)
	handle("GET /calls", s.adminCalls)
	handle("DELETE /calls", func(*http.Request) (any, error) { s.ResetCalls(); return nil, nil })
	handle("GET /requests", func(*http.Request) (any, error) { return s.Requests(), nil })
	handle("POST /principals", s.adminPrincipal)
	handle("PUT /identities", s.adminIdentities)
	handle("POST /identities/{client}/file", s.adminIdentityFile)
	handle("POST /tokens/revoke", s.adminRevoke)
	handle("PUT /tokens/lifetime", s.adminLifetime)
	handle("POST /clock", s.adminClock)
	mux.HandleFunc("GET /identity/token", s.serveIdentity)
	return mux
}

var errAdminNotFound = errors.New("not found")

func adminStatus(err error) int {
	if errors.Is(err, errAdminNotFound) {
		return http.StatusNotFound
	}
	return http.StatusBadRequest
}

func second[T any](_ T, err error) error { return err }

// read decodes a request's body; an empty one leaves into as it is.
func read(r *http.Request, into any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil || len(b) == 0 {
		return err
	}
	if err := strict(b, into); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	return nil
}

func (s *Server) adminState(*http.Request) (any, error) {
	s.mu.Lock()
	hosts := []string{}
	for _, v := range s.order {
		hosts = append(hosts, v.host)
	}
	s.mu.Unlock()
	return map[string]any{
		"service": s.Addr(), "proxy": s.ProxyURL(), "admin": s.AdminURL(), "caFile": s.CAFile(), "env": s.Env(),
		"identityEnv": s.IdentityEnv(), "tenantId": s.TenantID, "clientId": s.ClientID, "vaults": hosts, "time": s.now(),
	}, nil
}

func (s *Server) adminAddFault(r *http.Request) (any, error) {
	var f Fault
	if err := read(r, &f); err != nil {
		return nil, err
	}
	f.Op = Op(strings.ToLower(string(f.Op)))
	id, err := s.TryFault(f)
	return map[string]FaultID{"id": id}, err
}

func (s *Server) adminRemoveFault(r *http.Request) (any, error) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if _, ok := s.Faults()[FaultID(id)]; err != nil || !ok {
		return nil, fmt.Errorf("fault %q: %w", r.PathValue("id"), errAdminNotFound)
	}
	s.RemoveFault(FaultID(id))
	return nil, nil
}

func (s *Server) adminCalls(*http.Request) (any, error) {
	now, most := s.InFlight()
	return map[string]any{
		"calls": s.Calls(), "detail": s.count.detail(), "connections": s.Connections(), "connectionsByHost": s.count.connectionsByHost(),
		"open": s.OpenConnections(), "inFlight": now, "maxInFlight": most, "tokensIssued": s.TokensIssued(), "refused": s.Refused(),
	}, nil
}

func (s *Server) adminPrincipal(r *http.Request) (any, error) {
	var in struct {
		Principal
		CertificatesPEM string `json:"certificatesPem"`
	}
	if err := read(r, &in); err != nil {
		return nil, err
	}
	for rest := []byte(in.CertificatesPEM); len(strings.TrimSpace(string(rest))) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("certificatesPem: this is not PEM")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificatesPem: %w", err)
		}
		in.Certificates = append(in.Certificates, cert)
	}
	return nil, s.AddPrincipal(in.Principal)
}

func (s *Server) adminIdentities(r *http.Request) (any, error) {
	var ids []Identity
	if err := read(r, &ids); err != nil {
		return nil, err
	}
	s.SetIdentities(ids...)
	return nil, nil
}

func (s *Server) adminRevoke(r *http.Request) (any, error) {
	var in struct {
		Principal string `json:"principal"`
	}
	if err := read(r, &in); err != nil {
		return nil, err
	}
	s.RevokeTokensOf(in.Principal)
	return nil, nil
}

func (s *Server) adminLifetime(r *http.Request) (any, error) {
	var in struct {
		Lifetime duration `json:"lifetime"`
	}
	if err := read(r, &in); err != nil {
		return nil, err
	}
	if in.Lifetime <= 0 {
		return nil, errors.New("lifetime: a positive duration is needed")
	}
	s.SetTokenLifetime(time.Duration(in.Lifetime))
	return nil, nil
}

func (s *Server) adminClock(r *http.Request) (any, error) {
	var in struct {
		Advance duration `json:"advance"`
	}
	if err := read(r, &in); err != nil {
		return nil, err
	}
	s.AdvanceClock(time.Duration(in.Advance))
	return map[string]time.Time{"time": s.now()}, nil
}
