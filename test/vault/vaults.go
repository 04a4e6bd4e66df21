package vault

import (
	"fmt"
	"slices"
	"strings"
)

// Vault returns the Key Vault with the name, in the public cloud, which it
// makes if need be. It panics if the name cannot be one.
func (s *Server) Vault(name string) *Vault {
	return s.mustVault(strings.ToLower(name) + "." + clouds[0].vault)
}

// HSM is Vault for a Managed HSM.
func (s *Server) HSM(name string) *Vault {
	return s.mustVault(strings.ToLower(name) + "." + clouds[0].hsm)
}

func (s *Server) mustVault(host string) *Vault {
	v, err := s.VaultAt(host)
	if err != nil {
		panic(err)
	}
	return v
}

// VaultAt is Vault for a full host name, of any cloud, vault or Managed HSM.
func (s *Server) VaultAt(host string) (*Vault, error) {
	host = strings.ToLower(host)
	name, cloud, hsm, ok := splitHost(host)
	if !ok || !vaultNameForm.MatchString(name) {
		return nil, fmt.Errorf("%q is not the host name of a vault or Managed HSM", host)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.vaults[host]
	if v == nil {
		v = &Vault{
			srv: s, host: host, cloud: cloud, hsm: hsm, keys: map[string]*key{}, tenant: s.TenantID,
			access: AccessRBAC, network: NetworkOpen, allowed: map[string][]Permission{},
		}
		s.vaults[host] = v
		s.order = append(s.order, v)
	}
	return v, nil
}

// RemoveVault makes a vault's name unknown, as a purged vault's is.
func (s *Server) RemoveVault(host string) {
	s.mu.Lock()
	v := s.vaults[strings.ToLower(host)]
	delete(s.vaults, strings.ToLower(host))
	s.order = slices.DeleteFunc(s.order, func(o *Vault) bool { return o == v })
	s.mu.Unlock()
	if v != nil {
		s.main.each(func(c *conn) bool { return c.name() == v.host }, (*conn).retire)
	}
}
