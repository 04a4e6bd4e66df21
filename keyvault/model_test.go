package keyvault_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"azure-kms-plugin/keyvault"
)

// A modelVault is a vault with one key, in memory, whose clock is the bubble's.
// It stands in for the emulator where weeks pass in a second.
type modelVault struct {
	mu       sync.Mutex
	versions []*modelVersion // in the order of creation
	made     int
}

type modelVersion struct {
	id                 string
	created, updated   time.Time
	notBefore, expires time.Time
	enabled, gone      bool
	silent             bool // a GET of it by name fails
}

func (v *modelVault) rotate(change func(*modelVersion)) *modelVersion {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.made++
	id := fmt.Sprintf("%032x", 0xabcdef0000+v.made)
	now := time.Now()
	m := &modelVersion{id: id, created: now, updated: now, enabled: true}
	if change != nil {
		change(m)
	}
	v.versions = append(v.versions, m)
	return m
}

func (v *modelVault) set(m *modelVersion, change func(*modelVersion)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(m)
	m.updated = time.Now()
}

func (v *modelVault) newest() *modelVersion {
	for i := len(v.versions) - 1; i >= 0; i-- {
		if !v.versions[i].gone {
			return v.versions[i]
		}
	}
	return nil
}

func (m *modelVersion) usable() bool {
	now := time.Now()
	return !m.gone && m.enabled && !now.Before(m.notBefore) && (m.expires.IsZero() || now.Before(m.expires))
}

// A modelReplica is the way of one replica to the vault. Its machine's clock
// differs from the vault's by skew: since the bubble has one clock, it is the
// vault's times that are moved for it.
type modelReplica struct {
	vault *modelVault
	skew  time.Duration

	mu   sync.Mutex
	fail map[keyvault.Op]*keyvault.Error
	// lagging: every other look is answered by a server that does not know the
	// newest version yet.
	lagging bool
	looks   int
	silent  bool          // about the time of creation
	dateOff time.Duration // of the next look's Date
	calls   map[keyvault.Op]int
}

func (r *modelReplica) called(op keyvault.Op) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[op]
}

func (r *modelReplica) setDateOff(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dateOff = d
}

func (r *modelReplica) setLagging() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lagging = true
}

// behind reports whether this look is answered by the server that lags.
func (r *modelReplica) behind() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks++
	return r.lagging && r.looks%2 == 0
}

func (r *modelReplica) setFail(reason keyvault.Reason, ops ...keyvault.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = map[keyvault.Op]*keyvault.Error{}
	for _, op := range ops {
		r.fail[op] = &keyvault.Error{Op: op, Reason: reason, Text: "as the test says"}
	}
}

func (r *modelReplica) enter(ctx context.Context, op keyvault.Op) error {
	r.mu.Lock()
	if r.calls == nil {
		r.calls = map[keyvault.Op]int{}
	}
	r.calls[op]++
	e := r.fail[op]
	r.mu.Unlock()
	if e != nil {
		return e
	}
	return ctx.Err()
}

func (r *modelReplica) shift(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(r.skew).Truncate(time.Second)
}

func (r *modelReplica) attributes(ref keyvault.Ref, m *modelVersion) keyvault.Attributes {
	return keyvault.Attributes{
		Key: ref.WithVersion(m.id), Enabled: m.enabled,
		Created: r.shift(m.created), Updated: r.shift(m.updated),
		NotBefore: r.shift(m.notBefore), Expires: r.shift(m.expires),
		Date: r.shift(time.Now()),
	}
}

func (r *modelReplica) Get(ctx context.Context, ref keyvault.Ref) (keyvault.Attributes, error) {
	if err := r.enter(ctx, keyvault.OpGet); err != nil {
		return keyvault.Attributes{}, err
	}
	r.vault.mu.Lock()
	defer r.vault.mu.Unlock()
	if ref.Version != "" {
		m, e := r.find(keyvault.OpGet, ref)
		if e != nil {
			return keyvault.Attributes{}, e
		}
		return r.attributes(ref, m), nil
	}
	m := r.vault.newest()
	if n := len(r.vault.versions); n > 1 && r.behind() && !r.vault.versions[n-2].gone {
		m = r.vault.versions[n-2]
	}
	if m == nil {
		return keyvault.Attributes{}, &keyvault.Error{Op: keyvault.OpGet, Key: ref, Reason: keyvault.KeyNotFound, Text: "gone"}
	}
	a := r.attributes(ref, m)
	r.mu.Lock()
	a.Date, r.dateOff = a.Date.Add(r.dateOff), 0
	r.mu.Unlock()
	if r.silent {
		a.Created = time.Time{}
	}
	return a, nil
}

func (r *modelReplica) Versions(ctx context.Context, ref keyvault.Ref) (all []keyvault.Attributes, err error) {
	if err := r.enter(ctx, keyvault.OpList); err != nil {
		return nil, err
	}
	r.vault.mu.Lock()
	defer r.vault.mu.Unlock()
	for _, m := range r.vault.versions {
		if !m.gone {
			all = append([]keyvault.Attributes{r.attributes(ref, m)}, all...)
		}
	}
	return all, nil
}

// find checks a version as the vault would before a private-key operation.
func (r *modelReplica) find(op keyvault.Op, ref keyvault.Ref) (*modelVersion, *keyvault.Error) {
	for _, m := range r.vault.versions {
		if m.id != ref.Version || m.gone {
			continue
		}
		switch {
		case op == keyvault.OpGet && m.silent:
			return nil, &keyvault.Error{Op: op, Key: ref, Reason: keyvault.Unreachable, Text: "silent"}
		case op == keyvault.OpGet:
		case !m.enabled:
			return nil, &keyvault.Error{Op: op, Key: ref, Reason: keyvault.KeyDisabled, Text: "disabled"}
		case op == keyvault.OpEncrypt && !m.usable():
			return nil, &keyvault.Error{Op: op, Key: ref, Reason: keyvault.KeyExpired, Text: "not now"}
		}
		return m, nil
	}
	return nil, &keyvault.Error{Op: op, Key: ref, Reason: keyvault.KeyNotFound, Text: "no such version"}
}

func (r *modelReplica) Encrypt(ctx context.Context, ref keyvault.Ref, plaintext []byte) ([]byte, error) {
	if err := r.enter(ctx, keyvault.OpEncrypt); err != nil {
		return nil, err
	}
	r.vault.mu.Lock()
	defer r.vault.mu.Unlock()
	if _, e := r.find(keyvault.OpEncrypt, ref); e != nil {
		return nil, e
	}
	return []byte(ref.Version + hex.EncodeToString(plaintext)), nil
}

func (r *modelReplica) Decrypt(ctx context.Context, ref keyvault.Ref, block []byte) ([]byte, error) {
	if err := r.enter(ctx, keyvault.OpDecrypt); err != nil {
		return nil, err
	}
	r.vault.mu.Lock()
	defer r.vault.mu.Unlock()
	if _, e := r.find(keyvault.OpDecrypt, ref); e != nil {
		return nil, e
	}
	rest, ok := bytes.CutPrefix(block, []byte(strings.ToLower(ref.Version)))
	if !ok {
		return nil, &keyvault.Error{Op: keyvault.OpDecrypt, Key: ref, Reason: keyvault.BadCiphertext, Text: "another version's"}
	}
	return hex.DecodeString(string(rest))
}

// A modelMemory is the state file.
type modelMemory struct {
	mu      sync.Mutex
	ref     keyvault.Ref
	created time.Time
}

func (m *modelMemory) LastVersion() (keyvault.Ref, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ref, m.created
}

func (m *modelMemory) KeepVersion(ref keyvault.Ref, created time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ref, m.created = ref, created
}
