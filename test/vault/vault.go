package vault

import (
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Vault is a Key Vault or Managed HSM. Its methods are what an operator
// does by the portal; they need no permission. All are safe for concurrent use.
type Vault struct {
	srv   *Server
	host  string
	cloud cloud
	hsm   bool
	skew  atomic.Int64 // of its clock

	mu          sync.RWMutex
	keys        map[string]*key // by lower-case name; guarded by mu
	tenant      string
	access      AccessModel
	network     Network
	allowed     map[string][]Permission // by principal
	replication Replication
}

// KeyOptions says how a key version is made. The zero value is an enabled
// RSA-2048 key without end.
type KeyOptions struct {
	Bits      int             // 2048, 3072 or 4096. Default: 2048
	Key       *rsa.PrivateKey // instead of a new one of Bits
	Version   string          // 32 hex digits. Default: random
	Disabled  bool
	NotBefore time.Time
	Expires   time.Time
	Ops       []string  // key_ops. Default: all six of an RSA key
	Created   time.Time // Default: now
}

// A Version describes one version of a key.
type Version struct {
	ID                                   string
	Enabled                              bool
	NotBefore, Expires, Created, Updated time.Time
	Ops                                  []string
	Bits                                 int
}

type key struct {
	name     string
	versions []*version // in the order in which they came to be; the last is current
	deletion *deletion
	// back is when a recovered key can be used again.
	back time.Time
	// gets and lists count the calls that replicas take in turn.
	gets, lists atomic.Uint64
}

type deletion struct{ at, visible, purge time.Time }

// version is one version of a key. It is replaced, never changed, so that
// cryptography needs no lock.
type version struct {
	id                         string
	priv                       *rsa.PrivateKey
	enabled                    bool
	nbf, exp, created, updated time.Time
	ops                        []string
	came                       time.Time // set if replicas learn of it late
}

var allKeyOps = []string{"encrypt", "decrypt", "sign", "verify", "wrapKey", "unwrapKey"}

var (
	keyNameForm   = regexp.MustCompile(`^[0-9A-Za-z-]{1,127}$`)
	versionForm   = regexp.MustCompile(`^[0-9a-f]{32}$`)
	vaultNameForm = regexp.MustCompile(`^[0-9a-z-]{1,63}$`)
)

// Host is the vault's host name.
func (v *Vault) Host() string { return v.host }

// URL is the vault's URL under its real name.
func (v *Vault) URL() string { return "https://" + v.host }

// KeyURL is the identifier of a key, or of a version of it.
func (v *Vault) KeyURL(name, version string) string {
	s := v.URL() + "/keys/" + strings.ToLower(name)
	if version != "" {
		s += "/" + version
	}
	return s
}

// CreateKey makes the first or the next version of a key and returns its ID.
func (v *Vault) CreateKey(name string, o KeyOptions) (string, error) {
	ver, err := v.newVersion(o)
	if err != nil {
		return "", err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if fault := v.addVersion(name, ver); fault != nil {
		return "", fault
	}
	return ver.id, nil
}

// ImportKey adds a version with a known ID and key.
func (v *Vault) ImportKey(name, versionID string, priv *rsa.PrivateKey) error {
	_, err := v.CreateKey(name, KeyOptions{Key: priv, Version: versionID})
	return err
}

func (v *Vault) newVersion(o KeyOptions) (*version, error) {
	if o.Bits == 0 {
		o.Bits = 2048
	}
	if o.Key != nil {
		o.Bits = o.Key.N.BitLen()
	}
	if !slices.Contains([]int{2048, 3072, 4096}, o.Bits) {
		return nil, fmt.Errorf("a key has 2048, 3072 or 4096 bits, not %d", o.Bits)
	}
	if o.Version == "" {
		o.Version = randomVersion()
	}
	o.Version = strings.ToLower(o.Version)
	if !versionForm.MatchString(o.Version) {
		return nil, fmt.Errorf("%q is not a key version: 32 hexadecimal digits", o.Version)
	}
	if o.Ops == nil {
		o.Ops = allKeyOps
	}
	for _, op := range o.Ops {
		if !slices.Contains(allKeyOps, op) {
			return nil, fmt.Errorf("%q is not a key operation: one of %s", op, strings.Join(allKeyOps, ", "))
		}
	}
	if o.Key == nil {
		var err error
		if o.Key, err = rsa.GenerateKey(rand.Reader, o.Bits); err != nil {
			return nil, fmt.Errorf("making an RSA key: %w", err)
		}
	}
	if o.Created.IsZero() {
		o.Created = v.now()
	}
	created := o.Created.Truncate(time.Second)
	return &version{
		id: o.Version, priv: o.Key, enabled: !o.Disabled, ops: slices.Clone(o.Ops),
		nbf: o.NotBefore.Truncate(time.Second), exp: o.Expires.Truncate(time.Second), created: created, updated: created,
	}, nil
}

// addVersion puts ver behind the others of its key; v.mu is held.
func (v *Vault) addVersion(name string, ver *version) *apiError {
	if !keyNameForm.MatchString(name) {
		return badParameter("The request URI contains an invalid name: " + name)
	}
	k := v.keys[strings.ToLower(name)]
	if k != nil {
		if fault := v.conflict(k); fault != nil {
			return fault
		}
	} else {
		k = &key{name: strings.ToLower(name)}
		v.keys[k.name] = k
	}
	for _, old := range k.versions {
		if old.id == ver.id {
			return &apiError{status: 409, code: "Conflict", message: "The version exists already."}
		}
	}
	if v.replication != (Replication{}) {
		ver.came = v.now()
	}
	k.versions = append(k.versions, ver)
	return nil
}

// conflict says why k cannot be written now; v.mu is held. A key whose time
// to be purged has come no longer stands in the way.
func (v *Vault) conflict(k *key) *apiError {
	now := v.now()
	switch {
	case k.deletion == nil && now.Before(k.back):
		return errConflict(k.name, "ObjectIsBeingRecovered")
	case k.deletion == nil:
		return nil
	case now.Before(k.deletion.visible):
		return errConflict(k.name, "ObjectIsBeingDeleted")
	case now.Before(k.deletion.purge):
		return errConflict(k.name, "ObjectIsDeletedButRecoverable")
	}
	k.versions, k.deletion, k.back = nil, nil, time.Time{}
	return nil
}

// live returns a key that is neither deleted nor on its way back; v.mu is held.
func (v *Vault) live(name string) *key {
	k := v.keys[strings.ToLower(name)]
	if k == nil || k.deletion != nil || len(k.versions) == 0 || v.now().Before(k.back) {
		return nil
	}
	return k
}

// trash returns a key that /deletedkeys shows; v.mu is held.
func (v *Vault) trash(name string) *key {
	k := v.keys[strings.ToLower(name)]
	now := v.now()
	if k == nil || k.deletion == nil || now.Before(k.deletion.visible) || !now.Before(k.deletion.purge) {
		return nil
	}
	return k
}

// find returns a version, the current one for an empty ID.
func (v *Vault) find(name, id string) *version {
	v.mu.RLock()
	defer v.mu.RUnlock()
	k := v.live(name)
	if k == nil {
		return nil
	}
	if id == "" {
		return k.versions[len(k.versions)-1]
	}
	for _, ver := range k.versions {
		if ver.id == id {
			return ver
		}
	}
	return nil
}

// Versions describes the versions of a key, oldest first.
func (v *Vault) Versions(name string) []Version {
	v.mu.RLock()
	defer v.mu.RUnlock()
	k := v.keys[strings.ToLower(name)]
	if k == nil {
		return nil
	}
	var list []Version
	for _, ver := range k.versions {
		list = append(list, Version{
			ID: ver.id, Enabled: ver.enabled, NotBefore: ver.nbf, Expires: ver.exp,
			Created: ver.created, Updated: ver.updated, Ops: slices.Clone(ver.ops), Bits: ver.priv.N.BitLen(),
		})
	}
	return list
}

// names lists the keys for which pick holds, in order; v.mu is held.
func (v *Vault) names(pick func(string) *key) []*key {
	var list []*key
	for _, name := range slices.Sorted(maps.Keys(v.keys)) {
		if k := pick(name); k != nil {
			list = append(list, k)
		}
	}
	return list
}
