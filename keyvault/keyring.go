package keyvault

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A Vault does the operations that a keyring needs; *Client is one. Its errors
// must be *Error.
type Vault interface {
	Encrypt(ctx context.Context, ref Ref, plaintext []byte) ([]byte, error)
	Decrypt(ctx context.Context, ref Ref, block []byte) ([]byte, error)
	Versions(ctx context.Context, ref Ref) ([]Attributes, error)
}

// A KeyringConfig names the keys of a keyring.
type KeyringConfig struct {
	// Vault is required.
	Vault Vault
	// Write is the version that encrypts.
	Write Ref
	// Others are further keys or versions that may decrypt.
	Others []Ref
	// Warn is told, at most once a minute, what keeps the keyring from finding
	// a version. nil drops it. It must not block.
	Warn func(text string)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// A Keyring maps KMS key IDs to key versions: one that writes, those that may
// be read. This one is pinned: the version that writes never changes.
type Keyring struct {
	vault   Vault
	write   Ref
	keyID   string
	lookup  *lookup
	flights flights
}

// NewPinned makes a keyring that writes with one version. It makes no call.
func NewPinned(cfg KeyringConfig) (*Keyring, error) {
	var errs []error
	if cfg.Vault == nil {
		errs = append(errs, errors.New("a vault is required"))
	}
	if err := cfg.Write.Validate(); err != nil {
		errs = append(errs, err)
	} else if cfg.Write.Version == "" {
		errs = append(errs, fmt.Errorf("%s has no version, and a pinned keyring needs one", cfg.Write))
	}
	for _, r := range cfg.Others {
		if err := r.Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Keyring{vault: cfg.Vault, write: cfg.Write, keyID: cfg.Write.KeyID(), lookup: newLookup(cfg)}, nil
}

// KeyID is the ID under which Encrypt writes.
func (k *Keyring) KeyID() string { return k.keyID }

// WriteKey is the version that KeyID stands for.
func (k *Keyring) WriteKey() Ref { return k.write }

// IsKeyID reports whether s is what every KMS v2 plugin for Key Vault uses as key ID.
func IsKeyID(s string) bool { return isHex(s, 64) && s == strings.ToLower(s) }

// Encrypt encrypts under the ID that the caller was last told. The block it
// returns is the RSA block itself.
func (k *Keyring) Encrypt(ctx context.Context, keyID string, plaintext []byte) ([]byte, Ref, error) {
	if keyID != k.keyID {
		return nil, Ref{}, &Error{Op: OpEncrypt, Key: k.write, Reason: UnknownKey, Text: "this key ID does not write; ask for the status first"}
	}
	block, err := k.vault.Encrypt(ctx, k.write, plaintext)
	if err != nil {
		return nil, k.write, err
	}
	return block, k.write, nil
}

// Decrypt decrypts a block that was written under keyID. versionHint is the
// version that the writer has noted beside it, or empty; it is believed only
// when its hash is the key ID.
func (k *Keyring) Decrypt(ctx context.Context, keyID, versionHint string, block []byte) ([]byte, Ref, error) {
	if !IsKeyID(keyID) {
		return nil, Ref{}, &Error{Op: OpDecrypt, Reason: UnknownKey, Text: "the key ID is not one of Key Vault (64 lower-case hexadecimal digits)"}
	}
	ref, failure := k.lookup.find(ctx, keyID, versionHint)
	if failure != nil {
		return nil, Ref{}, failure
	}
	if len(block) == 0 {
		return nil, ref, &Error{Op: OpDecrypt, Key: ref, Reason: BadRequest, Text: "the ciphertext is empty"}
	}
	key := flightKey{strings.ToLower(ref.Host), strings.ToLower(ref.Name), strings.ToLower(ref.Version), sha256.Sum256(block)}
	plain, err := k.flights.do(ctx, key, ref, func(ctx context.Context) ([]byte, error) {
		return k.vault.Decrypt(ctx, ref, block)
	})
	if err != nil {
		return nil, ref, err
	}
	return plain, ref, nil
}

// mutexMap is a map of IDs that many read and few write.
type mutexMap struct {
	mu sync.RWMutex
	m  map[string]Ref // guarded by mu
}

func (m *mutexMap) get(id string) (Ref, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r, ok := m.m[id]
	return r, ok
}

func (m *mutexMap) len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.m)
}

func (m *mutexMap) add(r Ref) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range r.KeyIDs() {
		m.m[id] = r
	}
}
