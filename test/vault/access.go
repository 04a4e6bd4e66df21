package vault

import (
	"fmt"
	"slices"
	"strings"
)

// A Permission allows one operation. The list is closed.
type Permission string

const (
	PermEncrypt    Permission = "encrypt"
	PermDecrypt    Permission = "decrypt"
	PermWrapKey    Permission = "wrapkey"
	PermUnwrapKey  Permission = "unwrapkey"
	PermGet        Permission = "get"
	PermList       Permission = "list"
	PermGetDeleted Permission = "getdeleted" // part of get on vaults with access policies; Crypto Officer's on a Managed HSM
	PermCreate     Permission = "create"
	PermImport     Permission = "import"
	PermUpdate     Permission = "update"
	PermRotate     Permission = "rotate"
	PermDelete     Permission = "delete"
	PermRecover    Permission = "recover"
	PermPurge      Permission = "purge"
)

// AllPermissions lists every permission.
func AllPermissions() []Permission {
	return []Permission{
		PermEncrypt, PermDecrypt, PermWrapKey, PermUnwrapKey, PermGet, PermList, PermGetDeleted,
		PermCreate, PermImport, PermUpdate, PermRotate, PermDelete, PermRecover, PermPurge,
	}
}

// An AccessModel says in which words a vault refuses. The list is closed. A
// Managed HSM has its own whatever is set.
type AccessModel string

const (
	AccessRBAC         AccessModel = "rbac"          // ForbiddenByRbac; the default
	AccessPolicy       AccessModel = "access-policy" // ForbiddenByPolicy
	AccessPolicyLegacy AccessModel = "access-denied" // AccessDenied, the other code seen for the same
)

// Network says from where a vault may be reached. The list is closed.
type Network string

const (
	NetworkOpen        Network = "open"         // the default
	NetworkFirewall    Network = "firewall"     // the client's address is not on the list
	NetworkNoPublic    Network = "no-public"    // public access is switched off
	NetworkNotApproved Network = "not-approved" // the private link is not approved
)

// Allow sets what a principal (its client ID) may do with keys here, instead
// of what it could before; without permissions it may do nothing. The default
// principal may do everything and others nothing until this is called.
func (v *Vault) Allow(clientID string, perms ...Permission) error {
	for _, p := range perms {
		if !slices.Contains(AllPermissions(), p) {
			return fmt.Errorf("%q is not a permission: one of %v", p, AllPermissions())
		}
	}
	if v.srv.dir.principal(clientID) == nil {
		return fmt.Errorf("%q is not a principal: add it first", clientID)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.allowed[strings.ToLower(clientID)] = slices.Clone(perms)
	return nil
}

// SetAccessModel chooses the words of a refusal.
func (v *Vault) SetAccessModel(m AccessModel) error {
	if !slices.Contains([]AccessModel{AccessRBAC, AccessPolicy, AccessPolicyLegacy}, m) {
		return fmt.Errorf("%q is none of rbac, access-policy, access-denied", m)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.access = m
	return nil
}

// SetNetwork opens or closes the vault's firewall.
func (v *Vault) SetNetwork(n Network) error {
	if !slices.Contains([]Network{NetworkOpen, NetworkFirewall, NetworkNoPublic, NetworkNotApproved}, n) {
		return fmt.Errorf("%q is none of open, firewall, no-public, not-approved", n)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.network = n
	return nil
}

// SetTenant moves the vault to another tenant, whose tokens it then wants.
func (v *Vault) SetTenant(tenantID string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tenant = tenantID
}

// permissionFor is what an operation needs.
func permissionFor(op Op) Permission {
	switch op {
	case OpListKeys, OpListDeleted:
		return PermList
	case OpHealth, OpOther, OpChallenge:
		return ""
	}
	return Permission(op)
}

// words are a permission's names in refusals: of the access policy and of the
// RBAC action.
func (p Permission) words() (policy, action string) {
	switch p {
	case PermGet, PermGetDeleted:
		return "get", "read"
	case PermList:
		return "list", "read"
	case PermWrapKey:
		return "wrapKey", "wrap/action"
	case PermUnwrapKey:
		return "unwrapKey", "unwrap/action"
	case PermDelete:
		return "delete", "delete"
	case PermUpdate:
		return "update", "update/action"
	}
	return string(p), string(p) + "/action"
}

// hsmAction is a permission's name in the local roles of a Managed HSM. Source:
// "Managed HSM local RBAC built-in roles".
func (p Permission) hsmAction() string {
	switch p {
	case PermGet, PermList:
		return "read/action"
	case PermGetDeleted:
		return "deletedKeys/read/action"
	case PermRecover:
		return "deletedKeys/recover/action"
	case PermPurge:
		return "deletedKeys/delete"
	case PermWrapKey:
		return "wrap/action"
	case PermUnwrapKey:
		return "unwrap/action"
	case PermUpdate:
		return "write/action"
	case PermCreate, PermDelete:
		return string(p)
	}
	return string(p) + "/action"
}

// authorize says whether a principal may do op, and in which words not.
func (v *Vault) authorize(t *token, op Op, clientAddr string) *apiError {
	v.mu.RLock()
	access, network := v.access, v.network
	perms, set := v.allowed[strings.ToLower(t.clientID)]
	v.mu.RUnlock()
	name, _, _ := strings.Cut(v.host, ".")
	caller := t.caller()
	switch network {
	case NetworkFirewall:
		return forbidden("ForbiddenByFirewall", fmt.Sprintf(textFirewall, clientAddr, caller, name, location))
	case NetworkNoPublic:
		return forbidden("ForbiddenByConnection", fmt.Sprintf(textNoPublic, caller, name, location))
	case NetworkNotApproved:
		return forbidden("ForbiddenByConnection", fmt.Sprintf(textNotApproved, caller, name, location))
	}
	need := permissionFor(op)
	if need == "" || slices.Contains(perms, need) || !set && strings.EqualFold(t.clientID, v.srv.ClientID) {
		return nil
	}
	policy, action := need.words()
	switch {
	case v.hsm:
		return &apiError{status: 403, code: "AccessDenied", message: "Not authorized to access Microsoft.KeyVault/managedHsm/keys/" + need.hsmAction() + " on /keys"}
	case access == AccessPolicy:
		return forbidden("ForbiddenByPolicy", policyText(caller, policy, name))
	case access == AccessPolicyLegacy:
		return forbidden("AccessDenied", policyText(caller, policy, name))
	}
	return forbidden("ForbiddenByRbac", rbacText(caller, action, name))
}
