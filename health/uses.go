package health

import (
	"slices"
	"strings"
	"sync"
	"time"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

const (
	// inUse is how long a use of a version says that data is under it: after that,
	// kube-apiserver has forgotten the seeds of others, and would have come again. Source:
	// the time to live of its cache, 24 h.
	inUse = 24 * time.Hour
	// maybeInUse is how long nobody can be sure that none is.
	maybeInUse = 30 * 24 * time.Hour
	// maxUses bounds the versions that are kept count of, most recent use first.
	maxUses = 32
	// maxUnproven bounds those of them that nobody has ever read or written.
	maxUnproven = 4
)

// A use is what is known of one version: how it is used, and what the vault says of it.
type use struct {
	key keyvault.Ref

	encrypts, decrypts, failures uint64 // in this process
	lastEncrypt, lastDecrypt     time.Time
	// last is when data was last known to be under it: written, read, or could have been
	// written because it was the version that writes.
	last time.Time

	attrs keyvault.Attributes
	seen  time.Time // when the vault told attrs; zero for never

	bad      *keyvault.Error // why it cannot be read; nil if it can, as far as is known
	badSince time.Time
	// needed is when somebody last asked in vain; zero for not since it is bad. It
	// counts as a use.
	needed time.Time

	next time.Time // when to look again
}

// spoil notes why the version cannot be read.
func (u *use) spoil(err *keyvault.Error, at time.Time) {
	if u.bad == nil {
		u.badSince, u.next = at, time.Time{}
	}
	u.bad = err
}

// used is when data was last known, or said, to be under it.
func (u *use) used() time.Time { return latest(u.last, u.needed) }

func (u *use) mend() { u.bad, u.badSince, u.needed = nil, time.Time{}, time.Time{} }

// asked takes in what came of an Encrypt or a Decrypt.
func (u *use) asked(e keyvault.SeedEvent) {
	switch {
	case e.Err == nil && e.Op == keyvault.OpEncrypt:
		u.encrypts++
		u.lastEncrypt, u.last = e.Time, latest(u.last, e.Time)
	case e.Err == nil:
		u.decrypts++
		u.lastDecrypt, u.last = e.Time, latest(u.last, e.Time)
		u.mend()
	case e.Err.Reason == keyvault.Canceled:
	default:
		u.failures++
		if e.Op == keyvault.OpDecrypt && barsReading(e.Err) {
			u.spoil(e.Err, e.Time)
			u.needed = e.Time
		}
	}
}

// barsReading reports whether err says that the version itself cannot be read, as opposed
// to the vault being out of reach.
func barsReading(err *keyvault.Error) bool {
	return err.Reason.Kind() == keyvault.KindKeyState || denied(err)
}

// looked takes in what came of a look at its attributes.
func (u *use) looked(a keyvault.Attributes, err *keyvault.Error, at time.Time) {
	switch {
	case err == nil && a.Enabled:
		u.attrs, u.seen = a, at
		if u.bad != nil && (u.bad.Reason.Kind() == keyvault.KindKeyState || u.bad.Reason == keyvault.OperationNotPermitted && permits(a, u.bad.Op)) {
			u.mend()
		}
	case err == nil:
		u.attrs, u.seen = a, at
		_, text := a.Barred(clockOf(a, at))
		u.spoil(&keyvault.Error{Op: keyvault.OpGet, Key: u.key, Reason: keyvault.KeyDisabled, Text: text}, at)
	case err.Reason.Kind() == keyvault.KindKeyState:
		u.spoil(err, at)
	}
}

// permits reports whether a key's own list of operations has one.
func permits(a keyvault.Attributes, op keyvault.Op) bool {
	name := map[keyvault.Op]string{keyvault.OpDecrypt: "decrypt", keyvault.OpUnwrap: "unwrapKey"}[op]
	return slices.Contains(a.KeyOps, name)
}

// readable takes in that another version of the same key could be read at a moment: an
// identity is granted the permission for all of them at once.
func (u *use) readable(at time.Time) {
	if u.bad != nil && u.bad.Reason == keyvault.AccessDenied && at.After(u.needed) {
		u.mend()
	}
}

// pause is how long to wait for the next look.
func (u *use) pause(now time.Time, err *keyvault.Error) time.Duration {
	_, alarming := u.alarm(now)
	switch {
	case err != nil && denied(err):
		return metadataRetry
	case err != nil && wantsPause(err):
		return max(err.RetryAfter, watchUsed)
	case alarming && now.Sub(u.badSince) < watchHot:
		return watchBad
	case now.Sub(u.used()) <= inUse:
		return watchUsed
	}
	return watchIdle
}

// alarm is what somebody has to do about the version, if anything.
func (u *use) alarm(now time.Time) (status.Severity, bool) {
	switch {
	case u.bad == nil:
		return "", false
	case now.Sub(u.used()) <= inUse:
		return status.Critical, true
	case now.Sub(u.used()) <= maybeInUse:
		return status.Warning, true
	}
	return "", false
}

// Uses keeps count of the versions that data may be under. Its methods may be called
// from many goroutines.
type Uses struct {
	mu   sync.Mutex
	list []*use // latest use first, as far as the bound needs it
}

// NewUses returns what the process before this one knew; memory may be nil.
func NewUses(memory *Memory) *Uses {
	us := &Uses{}
	if memory != nil {
		us.list = memory.usesOf(time.Now())
	}
	return us
}

// of returns the entry of a version, made if need be. The caller holds mu.
func (us *Uses) of(key keyvault.Ref) *use {
	if i := slices.IndexFunc(us.list, func(u *use) bool { return u.key.SameVersion(key) }); i >= 0 {
		return us.list[i]
	}
	if len(us.list) == maxUses {
		slices.SortStableFunc(us.list, func(a, b *use) int { return b.last.Compare(a.last) })
		us.list = us.list[:maxUses-1]
	}
	u := &use{key: key}
	us.list = append(us.list, u)
	return u
}

// Seed takes in what came of a seed under a version.
func (us *Uses) Seed(e keyvault.SeedEvent) {
	if e.Key.Version == "" {
		return // which one it is was not found out
	}
	us.mu.Lock()
	defer us.mu.Unlock()
	known := slices.ContainsFunc(us.list, func(u *use) bool { return u.key.SameVersion(e.Key) })
	if !known && e.Err != nil && (!barsReading(e.Err) || e.Err.Reason != keyvault.KeyDisabled && us.unproven() >= maxUnproven) {
		return
	}
	us.of(e.Key).asked(e)
}

// unproven counts the versions that only requests speak of: anybody can make one up, but
// not one that the vault calls disabled. The caller holds mu.
func (us *Uses) unproven() (n int) {
	for _, u := range us.list {
		if u.last.IsZero() && u.seen.IsZero() && (u.bad == nil || u.bad.Reason != keyvault.KeyDisabled) {
			n++
		}
	}
	return n
}

// Read notes that a version could be read at a moment, whoever has asked.
func (us *Uses) Read(key keyvault.Ref, at time.Time) {
	us.mu.Lock()
	defer us.mu.Unlock()
	for _, u := range us.list {
		switch {
		case u.key.SameVersion(key):
			if at.After(u.needed) && u.bad != nil {
				u.mend()
			}
		case u.key.SameKey(key):
			u.readable(at)
		}
	}
}

// Wrote notes that data may have been written under a version up to now.
func (us *Uses) Wrote(key keyvault.Ref) {
	if key.Version == "" {
		return
	}
	us.mu.Lock()
	defer us.mu.Unlock()
	u := us.of(key)
	u.last = latest(u.last, time.Now())
}

// See takes in attributes that somebody else asked for.
func (us *Uses) See(a keyvault.Attributes) {
	if a.Key.Version == "" {
		return
	}
	us.mu.Lock()
	defer us.mu.Unlock()
	us.of(a.Key).looked(a, nil, time.Now())
}

// Created is when a version was made; zero if it is not known.
func (us *Uses) Created(key keyvault.Ref) time.Time {
	us.mu.Lock()
	defer us.mu.Unlock()
	for _, u := range us.list {
		if u.key.SameVersion(key) {
			return u.attrs.Created
		}
	}
	return time.Time{}
}

// snapshot returns copies, latest use first.
func (us *Uses) snapshot() []use {
	us.mu.Lock()
	defer us.mu.Unlock()
	out := make([]use, 0, len(us.list))
	for _, u := range us.list {
		out = append(out, *u)
	}
	slices.SortStableFunc(out, func(a, b use) int {
		if c := b.last.Compare(a.last); c != 0 {
			return c
		}
		return strings.Compare(a.key.Version, b.key.Version)
	})
	return out
}
