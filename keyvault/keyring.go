package keyvault

import (
	"context"
	"crypto/sha256"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Keyring maps KMS key IDs to key versions: one that writes, those that may
// be read. A pinned one writes with the same version for ever; a following one
// with the newest that is ready, as its Run finds out.
type Keyring struct {
	vault   Vault
	lookup  *lookup
	flights flights
	memory  VersionMemory // nil for none
	guide   guide
	pulse   pulse
	onSeed  func(SeedEvent)

	current  atomic.Pointer[writer] // nil until a version is known
	impaired atomic.Bool            // the last that was heard of it is a fault or a refusal
	behind   atomic.Bool            // a newer version is known

	mu      sync.Mutex
	writers map[string]*writer // what has been current, by key ID; guarded by mu

	keeping sync.Mutex
	kept    atomic.Pointer[writer] // the newest in the memory; changed under keeping
}

// A writer is a version that encrypts, or did earlier in this process.
type writer struct {
	ref     Ref
	id      string
	place   int // in the order in which they began to write
	created atomic.Pointer[time.Time]
}

func newKeyring(cfg KeyringConfig) *Keyring {
	k := &Keyring{
		vault: cfg.Vault, memory: cfg.Memory, lookup: newLookup(cfg), onSeed: cfg.OnSeed,
		writers: map[string]*writer{}, pulse: pulse{born: time.Now()},
	}
	if k.onSeed == nil {
		k.onSeed = func(SeedEvent) {}
	}
	return k
}

// write makes a version the one that writes.
func (k *Keyring) write(ref Ref, created time.Time) {
	w := &writer{ref: ref, id: ref.KeyID()}
	w.created.Store(&created)
	k.lookup.known.add(ref)
	k.mu.Lock()
	defer k.mu.Unlock()
	w.place = len(k.writers)
	k.writers[w.id] = w
	k.impaired.Store(false)
	k.current.Store(w)
}

// keep puts a version into the memory before an Encrypt is answered under it, unless
// a newer one is there already: an answer may come late.
func (k *Keyring) keep(w *writer) {
	if k.memory == nil {
		return
	}
	isKept := func() bool { last := k.kept.Load(); return last != nil && last.place >= w.place }
	if isKept() {
		return
	}
	k.keeping.Lock()
	defer k.keeping.Unlock()
	if !isKept() {
		k.memory.KeepVersion(w.ref, *w.created.Load())
		k.kept.Store(w)
	}
}

// created adds when the version that writes was created, which its name does not tell.
func (k *Keyring) created(ref Ref, at time.Time) {
	w := k.current.Load()
	if at.IsZero() || !ref.SameVersion(w.ref) {
		return
	}
	k.keeping.Lock()
	defer k.keeping.Unlock()
	w.created.Store(&at)
	if k.kept.Load() == w {
		k.memory.KeepVersion(w.ref, at)
	}
}

// KeyID is the ID to encrypt under; empty while no version is known. held is the
// ID under which the caller has a seed, if it was told a newer one since but got no
// seed under that: while the new version fails by a fault or a refusal, the caller is told the
// old ID again, so that it goes on with the seed it has.
func (k *Keyring) KeyID(held string) string {
	w := k.current.Load()
	switch {
	case w == nil:
		return ""
	case held != "" && k.impaired.Load() && k.writer(held) != nil:
		return held
	}
	return w.id
}

// WriteKey is the version that writes; without a version while none is known.
func (k *Keyring) WriteKey() Ref {
	if w := k.current.Load(); w != nil {
		return w.ref
	}
	return k.lookup.keys[0]
}

// Behind reports whether a version is known that is newer than the one that writes.
// What the vault names as the newest may be older: after a restore, or by a server that
// lags.
func (k *Keyring) Behind() bool { return k.behind.Load() }

// writer returns the version that writes, or once wrote, under an ID.
func (k *Keyring) writer(id string) *writer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writers[id]
}

// Observe takes in how an operation has ended, whoever asked for it.
func (k *Keyring) Observe(o Outcome) {
	w := k.current.Load()
	if w == nil || o.Op == OpGet || o.Op == OpList || !o.Key.SameVersion(w.ref) {
		return
	}
	switch {
	case o.Err == nil:
		k.impaired.Store(false)
	case impairs(o.Err):
		k.impaired.Store(true)
	}
}

// impairs reports whether a failure under the version that writes is one that
// Status bears for a while: then nobody should have to do without a seed for it.
func impairs(e *Error) bool {
	return e.Reason.Kind() == KindFault || e.Reason.Kind() == KindRefusal
}

// IsKeyID reports whether s is what every KMS v2 plugin for Key Vault uses as key ID.
func IsKeyID(s string) bool { return isHex(s, 64) && s == strings.ToLower(s) }

// Encrypt encrypts under the ID that the caller was last told. The block it
// returns is the RSA block itself. Before the first answer under a version that
// writes, the version is remembered for the next process.
func (k *Keyring) Encrypt(ctx context.Context, keyID string, plaintext []byte) ([]byte, Ref, error) {
	w := k.writer(keyID)
	if w == nil {
		return nil, Ref{}, &Error{Op: OpEncrypt, Key: k.WriteKey(), Reason: UnknownKey, Text: "this key ID does not write; ask for the status first"}
	}
	block, err := k.vault.Encrypt(ctx, w.ref, plaintext)
	if err != nil {
		// Observe does not hear of one that was answered without asking the vault.
		if e := asError(err); e != nil && k.current.Load() == w && impairs(e) {
			k.impaired.Store(true)
		}
		k.onSeed(SeedEvent{Op: OpEncrypt, Key: w.ref, Err: asOwn(OpEncrypt, w.ref, err), Time: time.Now()})
		return nil, w.ref, err
	}
	k.keep(w)
	k.onSeed(SeedEvent{Op: OpEncrypt, Key: w.ref, Sum: sha256.Sum256(block), Time: time.Now()})
	return block, w.ref, nil
}

// Decrypt decrypts a block that was written under keyID. versionHint is the
// version that the writer has noted beside it, or empty; it is believed only
// when its hash is the key ID.
func (k *Keyring) Decrypt(ctx context.Context, keyID, versionHint string, block []byte) ([]byte, Ref, error) {
	if !IsKeyID(keyID) {
		return nil, Ref{}, &Error{Op: OpDecrypt, Reason: UnknownKey, Text: "the key ID is not one of Key Vault (64 lower-case hexadecimal digits)"}
	}
	if len(block) == 0 {
		return nil, Ref{}, &Error{Op: OpDecrypt, Reason: BadRequest, Text: "the ciphertext is empty"}
	}
	sum := sha256.Sum256(block)
	ref, failure := k.lookup.find(ctx, keyID, versionHint)
	if failure != nil {
		k.onSeed(SeedEvent{Op: OpDecrypt, Key: failure.Key, Sum: sum, Err: failure, Time: time.Now()})
		return nil, Ref{}, failure
	}
	key := flightKey{strings.ToLower(ref.Host), strings.ToLower(ref.Name), strings.ToLower(ref.Version), sum}
	plain, err := k.flights.do(ctx, key, ref, func(ctx context.Context) ([]byte, error) {
		return k.vault.Decrypt(ctx, ref, block)
	})
	k.onSeed(SeedEvent{Op: OpDecrypt, Key: ref, Sum: sum, Err: asOwn(OpDecrypt, ref, err), Time: time.Now()})
	if err != nil {
		return nil, ref, err
	}
	return plain, ref, nil
}
