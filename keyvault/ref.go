package keyvault

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
)

// A Ref names a key in a vault, or one version of it.
type Ref struct {
	// Host is the DNS name of the vault or Managed HSM as the operator wrote
	// it, without scheme or port. The case is kept because key IDs that are
	// already in etcd were hashed over it; use SameKey to compare.
	Host string
	// Name is the key's name.
	Name string
	// Version is the 32 hex digits of one version; empty means the key as a whole.
	Version string
}

// URLForm is the form of a key URL, for texts.
const URLForm = "https://<vault host>/keys/<name>/<version> (the version is optional)"

// ParseURL reads a key URL, https://<vault host>/keys/<name>[/<version>].
func ParseURL(s string) (Ref, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "" {
		return Ref{}, fmt.Errorf("%q is not a key URL: write %s", s, URLForm)
	}
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(u.Path, "/"), "/"), "/")
	if len(parts) < 2 || len(parts) > 3 || parts[0] != "keys" {
		return Ref{}, fmt.Errorf("%q is not a key URL: write %s", s, URLForm)
	}
	// The spelling stays: data may have been written under it, see Host.
	r := Ref{Host: strings.TrimSuffix(u.Host, ":443"), Name: parts[1]}
	if len(parts) == 3 {
		r.Version = parts[2]
	}
	return r, r.Validate()
}

// IsVaultName reports whether s can be the name of a vault: 3 to 24 letters, digits and
// dashes, with a dash neither first nor last.
func IsVaultName(s string) bool { return isLabel(s, 3, 24) && s == strings.Trim(s, "-") }

// Validate reports the first part of r that cannot be sent to a vault.
func (r Ref) Validate() error {
	switch {
	case !isHost(r.Host):
		return fmt.Errorf("%q is not the host name of a vault", r.Host)
	// Source of both forms: Key Vault object identifiers, in "About keys, secrets
	// and certificates".
	case !isLabel(r.Name, 1, 127):
		return fmt.Errorf("%q is not a key name: 1 to 127 letters, digits and dashes", r.Name)
	case r.Version != "" && !IsVersion(r.Version):
		return fmt.Errorf("%q is not a key version: 32 hexadecimal digits", r.Version)
	}
	return nil
}

// IsVersion reports whether s has the form of a key version: 32 hexadecimal digits.
func IsVersion(s string) bool { return isHex(s, 32) }

// WithVersion returns the same key at another version.
func (r Ref) WithVersion(version string) Ref {
	r.Version = version
	return r
}

// URL is the key's identifier, as Key Vault writes it in "kid".
func (r Ref) URL() string {
	s := "https://" + r.Host + "/keys/" + r.Name
	if r.Version != "" {
		s += "/" + r.Version
	}
	return s
}

// String is URL, so that a Ref can be logged.
func (r Ref) String() string { return r.URL() }

// KeyID is the KMS v2 key ID of a version: the lower-case hex SHA-256 of its
// URL, as Azure/kubernetes-kms and OpenShift's fork compute it.
func (r Ref) KeyID() string {
	sum := sha256.Sum256([]byte(r.URL()))
	return hex.EncodeToString(sum[:])
}

// KeyIDHash is a key ID as kube-apiserver's metrics show it, for labels and logs.
func KeyIDHash(keyID string) string {
	sum := sha256.Sum256([]byte(keyID))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// KeyIDs lists every ID under which existing plugins may have stored this
// version: with the host as written and with the host in lower case.
func (r Ref) KeyIDs() []string {
	ids := []string{r.KeyID()}
	if lower := strings.ToLower(r.Host); lower != r.Host {
		ids = append(ids, Ref{Host: lower, Name: r.Name, Version: r.Version}.KeyID())
	}
	return ids
}

// IsHSM reports whether the key is in a Managed HSM, in whatever cloud.
func (r Ref) IsHSM() bool {
	_, domain, _ := strings.Cut(r.Host, ".")
	return strings.HasPrefix(strings.ToLower(domain), "managedhsm.")
}

// SameKey reports whether r and o name the same key, whatever their versions.
// Key Vault compares hosts and names without regard to case.
func (r Ref) SameKey(o Ref) bool {
	return strings.EqualFold(r.Host, o.Host) && strings.EqualFold(r.Name, o.Name)
}

// SameVersion reports whether r and o name the same version of the same key.
func (r Ref) SameVersion(o Ref) bool {
	return r.SameKey(o) && strings.EqualFold(r.Version, o.Version)
}
