package keyvault

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// listEvery is the shortest time between two listings, over all keys, and
	// relistAfter that after one which a fault has spoilt.
	listEvery   = time.Minute
	relistAfter = 5 * time.Second
	// missingFor is how long an ID that no listing has shown is not looked for
	// again. A version made in the meantime is found after it.
	missingFor = 5 * time.Minute
	// maxMissing bounds the memory of such IDs, which come from outside.
	maxMissing = 1024
	// maxKnown bounds what is learned from hints, which come from outside too:
	// anybody can hash a version that does not exist.
	maxKnown = 1024
)

// A lookup finds the version that a key ID stands for: among those known, by
// the writer's hint, and at last by listing the versions of the configured keys.
type lookup struct {
	vault Vault
	keys  []Ref // without versions, the write key first
	warn  func(*Error)
	now   func() time.Time
	known mutexMap

	mu      sync.Mutex
	listing chan struct{} // closed when the listing under way ends; nil without one
	next    time.Time     // no other one starts before
	quiet   time.Time     // no warning before
	result  *Error        // why the last one did not show all; nil if it did
	missing map[string]time.Time
}

func newLookup(cfg KeyringConfig) *lookup {
	l := &lookup{vault: cfg.Vault, warn: cfg.Warn, now: cfg.Now, known: mutexMap{m: map[string]Ref{}}, missing: map[string]time.Time{}}
	if l.warn == nil {
		l.warn = func(*Error) {}
	}
	if l.now == nil {
		l.now = time.Now
	}
	for _, r := range append([]Ref{cfg.Write}, cfg.Others...) {
		if r.Version != "" {
			l.known.add(r)
		}
		if key := r.WithVersion(""); !l.has(key) {
			l.keys = append(l.keys, key)
		}
	}
	return l
}

// has compares exactly: two spellings of a host hash to different key IDs.
func (l *lookup) has(key Ref) bool {
	return slices.Contains(l.keys, key)
}

// find returns the version behind id, which is well formed.
func (l *lookup) find(ctx context.Context, id, hint string) (Ref, *Error) {
	if r, ok := l.known.get(id); ok {
		return r, nil
	}
	if IsVersion(hint) {
		for _, key := range l.keys {
			r := key.WithVersion(hint)
			if slices.Contains(r.KeyIDs(), id) {
				if l.known.len() < maxKnown {
					l.known.add(r)
				}
				return r, nil
			}
		}
	}
	if done := l.list(ctx, id); done != nil {
		if failure := waitFor(ctx, done, l.keys[0]); failure != nil {
			return Ref{}, failure
		}
	}
	if r, ok := l.known.get(id); ok {
		return r, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return Ref{}, l.unknown()
}

// waitFor waits for a listing as long as the caller can.
func waitFor(ctx context.Context, done <-chan struct{}, key Ref) *Error {
	ctx, cancel := withBudget(ctx)
	defer cancel()
	deadline, _ := ctx.Deadline()
	c := &call{op: OpList, ref: key, budget: time.Until(deadline)}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return c.ended(ctx)
	}
}

// list starts a listing if one may help, and returns what to wait for.
func (l *lookup) list(ctx context.Context, id string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if until, ok := l.missing[id]; ok && now.Before(until) {
		return nil
	}
	if l.listing == nil {
		if now.Before(l.next) {
			return nil
		}
		l.next, l.listing = now.Add(listEvery), make(chan struct{})
		// Not the caller's: what is learned serves all, and its end must not
		// count against the vault.
		go l.run(Background(context.WithoutCancel(ctx)), id, l.listing)
	}
	return l.listing
}

// run lists every configured key. One that may not be listed does not hide the
// others.
func (l *lookup) run(ctx context.Context, id string, done chan struct{}) {
	defer close(done)
	var result *Error
	for _, key := range l.keys {
		versions, err := l.vault.Versions(ctx, key)
		for _, v := range versions {
			l.known.add(key.WithVersion(v.Key.Version))
		}
		if err == nil {
			continue
		}
		e := asError(err)
		if e == nil {
			e = &Error{Op: OpList, Key: key, Reason: Unknown, Text: where(key) + ": listing failed", Err: err}
		}
		// A fault is worth waiting for; a refusal will be the same tomorrow.
		if result == nil || e.Reason.Kind() == KindFault && result.Reason.Kind() != KindFault {
			result = e
		}
	}
	if result != nil {
		l.complain(result)
	}
	_, found := l.known.get(id)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.listing, l.result = nil, result
	switch {
	case result != nil && result.Reason.Kind() == KindFault:
		l.next = l.now().Add(relistAfter)
	case !found:
		l.miss(id)
	}
}

// complain warns, once a minute.
func (l *lookup) complain(e *Error) {
	l.mu.Lock()
	now := l.now()
	quiet := now.Before(l.quiet)
	if !quiet {
		l.quiet = now.Add(listEvery)
	}
	l.mu.Unlock()
	if !quiet {
		l.warn(e)
	}
}

// miss remembers an ID that no key has. The caller holds l.mu.
func (l *lookup) miss(id string) {
	now := l.now()
	if len(l.missing) >= maxMissing {
		for k, until := range l.missing {
			if !now.Before(until) {
				delete(l.missing, k)
			}
		}
		if len(l.missing) >= maxMissing {
			clear(l.missing)
		}
	}
	l.missing[id] = now.Add(missingFor)
}

// unknown says why an ID was not found. The caller holds l.mu.
func (l *lookup) unknown() *Error {
	e := &Error{Op: OpDecrypt, Reason: UnknownKey}
	switch r := l.result; {
	case r == nil:
		e.Text = fmt.Sprintf("the key ID belongs to no version of %s; if the data was written with another key, give it with --decrypt-key=<key URL>", l.names())
	case r.Reason.Kind() == KindFault:
		// It may well be one of ours: the vault could not be asked.
		return r.at(OpDecrypt, r.Key)
	default:
		e.Text = fmt.Sprintf("the key ID is not that of a known version, and the versions of %s cannot be listed (%s): give the version with --decrypt-key=<key URL with version>, or grant the key permission \"list\"", where(r.Key), r.Reason)
	}
	return e
}

func (l *lookup) names() string {
	var names []string
	for _, k := range l.keys[:min(len(l.keys), 4)] {
		names = append(names, k.Host+"/keys/"+k.Name)
	}
	if len(l.keys) > 4 {
		names = append(names, "others")
	}
	return strings.Join(names, ", ")
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
