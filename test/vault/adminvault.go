package vault

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

func (s *Server) adminVault(r *http.Request) (*Vault, error) {
	v := s.lookup(s.fullHost(r.PathValue("host")))
	if v == nil {
		return nil, fmt.Errorf("vault %q: %w", r.PathValue("host"), errAdminNotFound)
	}
	return v, nil
}

func (s *Server) adminPatchVault(r *http.Request) (any, error) {
	v, err := s.adminVault(r)
	var in struct {
		Access  AccessModel `json:"access"`
		Network Network     `json:"network"`
		Tenant  string      `json:"tenant"`
		// A duration that is left out stays as it is.
		Lag       *duration `json:"lag"`
		Alternate *duration `json:"alternate"`
		ClockSkew *duration `json:"clockSkew"`
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
	if in.Lag != nil || in.Alternate != nil {
		err = errors.Join(err, v.patchReplication(in.Lag, in.Alternate))
	}
	if in.ClockSkew != nil {
		v.SetClockSkew(time.Duration(*in.ClockSkew))
	}
	return nil, err
}

// patchReplication changes what is not nil.
func (v *Vault) patchReplication(lag, alternate *duration) error {
	v.mu.RLock()
	r := v.replication
	v.mu.RUnlock()
	if lag != nil {
		r.Lag = time.Duration(*lag)
	}
	if alternate != nil {
		r.Alternate = time.Duration(*alternate)
	}
	return v.SetReplication(r)
}

func (s *Server) adminAllow(r *http.Request) (any, error) {
	v, err := s.adminVault(r)
	var perms []Permission
	if err = errors.Join(err, read(r, &perms)); err != nil {
		return nil, err
	}
	for i, p := range perms { // az and access policies write wrapKey
		perms[i] = Permission(strings.ToLower(string(p)))
	}
	return nil, v.Allow(r.PathValue("principal"), perms...)
}

// spelled gives each of key_ops the case that the service wants: people write both
// wrapKey and wrapkey. What is none stays as it is, to be refused.
func spelled(ops []string) []string {
	out := slices.Clone(ops)
	for i, op := range out {
		if known := slices.IndexFunc(allKeyOps, func(known string) bool { return strings.EqualFold(known, op) }); known >= 0 {
			out[i] = allKeyOps[known]
		}
	}
	return out
}

type adminVersion struct {
	Version   string     `json:"version,omitempty"`
	Enabled   *bool      `json:"enabled,omitempty"`
	NotBefore *time.Time `json:"notBefore,omitempty"`
	Expires   *time.Time `json:"expires,omitempty"`
	Created   *time.Time `json:"created,omitempty"`
	Updated   *time.Time `json:"updated,omitempty"` // only shown
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
		a := adminVersion{Version: ver.ID, Enabled: &ver.Enabled, Created: &ver.Created, Updated: &ver.Updated, Ops: ver.Ops, Bits: ver.Bits}
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
	o := KeyOptions{Bits: in.Bits, Version: in.Version, Ops: spelled(in.Ops), Disabled: in.Enabled != nil && !*in.Enabled}
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
		err = errors.Join(err, v.SetKeyOps(name, id, spelled(in.Ops)...))
	}
	return nil, err
}
