package vault

import (
	"crypto/rsa"
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

func (s *Server) adminVault(r *http.Request) (*Vault, error) {
	v := s.lookup(s.fullHost(r.PathValue("host")))
	if v == nil {
		return nil, fmt.Errorf("vault %q: %w", r.PathValue("host"), errAdminNotFound)
	}
	return v, nil
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

func (s *Server) adminPatchVault(r *http.Request) (any, error) {
	v, err := s.adminVault(r)
	var in struct {
		Access  AccessModel `json:"access"`
		Network Network     `json:"network"`
		Tenant  string      `json:"tenant"`
	}
	if err = errors.Join(err, read(r, &in)); err != nil {
		return nil, err
	}
	if in.Access != "" {
		err = errors.Join(err, v.SetAccessModel(in.Access))
	}
	if in.Network != "" {
		err = errors.Join(err, v.SetNetwork(in.Network))
	}
	if in.Tenant != "" {
		v.SetTenant(in.Tenant)
	}
	return nil, err
}

func (s *Server) adminAllow(r *http.Request) (any, error) {
	v, err := s.adminVault(r)
	var perms []Permission
	if err = errors.Join(err, read(r, &perms)); err != nil {
		return nil, err
	}
	return nil, v.Allow(r.PathValue("principal"), perms...)
}

type adminVersion struct {
	Version   string     `json:"version,omitempty"`
	Enabled   *bool      `json:"enabled,omitempty"`
	NotBefore *time.Time `json:"notBefore,omitempty"`
	Expires   *time.Time `json:"expires,omitempty"`
	Created   *time.Time `json:"created,omitempty"`
	Ops       []string   `json:"ops,omitempty"`
	Bits      int        `json:"bits,omitempty"`
	PEM       string     `json:"pem,omitempty"` // only read: an RSA private key
}

func (s *Server) adminVersions(r *http.Request) (any, error) {
	v, err := s.adminVault(r)
	if err != nil {
		return nil, err
	}
	list := []adminVersion{}
	for _, ver := range v.Versions(r.PathValue("name")) {
		a := adminVersion{Version: ver.ID, Enabled: &ver.Enabled, Created: &ver.Created, Ops: ver.Ops, Bits: ver.Bits}
		if !ver.NotBefore.IsZero() {
			a.NotBefore = &ver.NotBefore
		}
		if !ver.Expires.IsZero() {
			a.Expires = &ver.Expires
		}
		list = append(list, a)
	}
	return list, nil
}

func (s *Server) adminCreateKey(r *http.Request) (any, error) {
	v, err := s.adminVault(r)
	var in adminVersion
	if err = errors.Join(err, read(r, &in)); err != nil {
		return nil, err
	}
	o := KeyOptions{Bits: in.Bits, Version: in.Version, Ops: in.Ops, Disabled: in.Enabled != nil && !*in.Enabled}
	for _, t := range []struct {
		from *time.Time
		to   *time.Time
	}{{in.NotBefore, &o.NotBefore}, {in.Expires, &o.Expires}, {in.Created, &o.Created}} {
		if t.from != nil {
			*t.to = *t.from
		}
	}
	if in.PEM != "" {
		if o.Key, err = parsePEM(in.PEM); err != nil {
			return nil, err
		}
	}
	id, err := v.CreateKey(r.PathValue("name"), o)
	return map[string]string{"version": id, "url": v.KeyURL(r.PathValue("name"), id)}, err
}

func parsePEM(text string) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("pem: this is not PEM")
	}
	if k, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return k, nil
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("pem: %w", err)
	}
	if rsaKey, ok := k.(*rsa.PrivateKey); ok {
		return rsaKey, nil
	}
	return nil, errors.New("pem: this is not an RSA key")
}

func (s *Server) adminPatchKey(r *http.Request) (any, error) {
	v, err := s.adminVault(r)
	var in adminVersion
	if err = errors.Join(err, read(r, &in)); err != nil {
		return nil, err
	}
	name, id := r.PathValue("name"), r.PathValue("version")
	if id == "current" {
		id = ""
	}
	if in.Enabled != nil {
		err = errors.Join(err, v.SetEnabled(name, id, *in.Enabled))
	}
	if in.NotBefore != nil {
		err = errors.Join(err, v.SetNotBefore(name, id, *in.NotBefore))
	}
	if in.Expires != nil {
		err = errors.Join(err, v.SetExpires(name, id, *in.Expires))
	}
	if in.Ops != nil {
		err = errors.Join(err, v.SetKeyOps(name, id, in.Ops...))
	}
	return nil, err
}

func (s *Server) adminAddFault(r *http.Request) (any, error) {
	var f Fault
	if err := read(r, &f); err != nil {
		return nil, err
	}
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
