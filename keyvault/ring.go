package keyvault

import (
	"slices"
	"strings"
	"time"
)

const (
	// verifyAgain is the pause after a failed round trip under a version that does
	// not write yet.
	verifyAgain = 10 * time.Second
	// verifySeldom is what that pause grows to under one that is overdue, and fails in a
	// way that does not end by itself.
	verifySeldom = 10 * time.Minute
	// lastLook is how long before a switch the version is looked at and proven once
	// more: one that was disabled, deleted or overtaken meanwhile is not adopted.
	lastLook = 2 * time.Second
)

// A ring decides which version of a key writes, for a keyring that follows the
// newest one. It is a value: no clock, no lock, no I/O. What concerns the versions
// is in the vault's own time, so that replicas that never meet switch at the same
// moment; what concerns this process is in its own, which nobody sets.
type ring struct {
	// delay is how long after a version has become usable it begins to write.
	delay time.Duration
	// fresh is how old a look and a good round trip may be at the switch.
	fresh time.Duration

	members []*member // oldest first
	newest  string    // the version that the vault names as the current one
	writes  *member   // nil before begin or resume
}

// A moment is now, by both clocks.
type moment struct {
	vault time.Time
	here  time.Time
}

// A member is one version.
type member struct {
	ref   Ref
	attrs Attributes // as last seen; only Created is set on one that is resumed
	// guessed: when it was created is not known.
	guessed bool

	// By this process's clock; zero for never.
	looked time.Time // when the newest version was last asked for, for its switch
	proven time.Time // last good round trip
	retry  time.Time // after a failed one: no other before

	pause time.Duration // the last one after a failed round trip
}

// validFrom is when it could encrypt at the earliest, but for being disabled.
func (m *member) validFrom() time.Time {
	return latest(m.attrs.Created, m.attrs.NotBefore)
}

// barred says why it cannot encrypt; Success if its attributes do not keep it from that.
func (m *member) barred(now time.Time) Reason {
	reason, _ := m.attrs.Barred(now)
	return reason
}

// find returns a known version, or nil.
func (r *ring) find(version string) *member {
	for _, m := range r.members {
		if strings.EqualFold(m.ref.Version, version) {
			return m
		}
	}
	return nil
}

// learn takes in the newest version, and the others as far as they were listed.
// It returns the versions that were not known before.
func (r *ring) learn(newest Attributes, listed []Attributes) (learned []Ref) {
	r.newest = newest.Key.Version
	for _, a := range append(slices.Clone(listed), newest) {
		m := r.find(a.Key.Version)
		if m == nil {
			m = &member{ref: a.Key}
			r.members = append(r.members, m)
			learned = append(learned, a.Key)
		}
		if m.attrs.differ(a) {
			m.mended() // it may be
		}
		m.attrs, m.guessed = a, false
	}
	slices.SortStableFunc(r.members, func(a, b *member) int {
		switch {
		case r.newer(b, a):
			return -1
		case r.newer(a, b):
			return 1
		}
		return 0
	})
	return learned
}

// newer compares by creation, which has a resolution of a second. Between two of the
// same one, what decides must be the same for all replicas and never change.
func (r *ring) newer(a, b *member) bool {
	if a == b {
		return false
	}
	if a.attrs.Created.Equal(b.attrs.Created) {
		return strings.ToLower(a.ref.Version) > strings.ToLower(b.ref.Version)
	}
	return a.attrs.Created.After(b.attrs.Created)
}

// behind reports whether a newer version is known than the one that writes.
func (r *ring) behind() bool {
	return r.writes != nil && r.newer(r.members[len(r.members)-1], r.writes)
}

// begin chooses the version that writes for a process that remembers none: the
// newest that may have been in use, even if it cannot be used now, since data may
// be under it. One that is too young for that has an older one before it; where
// none is known it writes at once.
func (r *ring) begin(now time.Time) Ref {
	for _, m := range slices.Backward(r.members) {
		if m.mayHaveWritten(now, r.delay) {
			r.writes = m
			return m.ref
		}
	}
	r.writes = r.find(r.newest)
	return r.writes.ref
}

// mayHaveWritten reports whether a version has been around for long enough, and was
// not disabled before its time came.
func (m *member) mayHaveWritten(now time.Time, delay time.Duration) bool {
	aborted := !m.attrs.Enabled && m.changedInTime(delay)
	return !aborted && !m.young(now, delay)
}

// young reports whether its time has not come yet. A change that came before it has put
// it off for all. A later one may be what has just enabled it, or a touch of one in use
// for long: nothing tells them apart. The older version is the greater risk then, as it
// may have been retired; the newer one is known to all, and read by them.
func (m *member) young(now time.Time, delay time.Duration) bool {
	from := m.validFrom()
	if m.changedInTime(delay) {
		from = latest(from, m.attrs.Updated)
	}
	return now.Before(from.Add(delay))
}

// changedInTime reports whether its last change came before it could have written.
func (m *member) changedInTime(delay time.Duration) bool {
	return !m.attrs.Updated.IsZero() && m.attrs.Updated.Before(m.validFrom().Add(delay))
}

// resume begins with the version that the process before this one wrote with, which
// may not know when it was created: a pinned one need not be allowed to ask.
func (r *ring) resume(ref Ref, created time.Time) {
	m := &member{ref: ref, attrs: Attributes{Key: ref, Created: created}, guessed: created.IsZero()}
	r.members = []*member{m}
	r.writes = m
}

// guess puts the creation of the version that writes at now, if nothing is known about
// it: until that is, only what comes later is newer.
func (r *ring) guess(now time.Time) {
	if r.undated() && r.writes.attrs.Created.IsZero() {
		r.writes.attrs.Created = now
	}
}

// undated reports whether it is not known when the version that writes was created.
func (r *ring) undated() bool { return r.writes != nil && r.writes.guessed }

// differ reports whether a version was changed between two looks at it.
func (a Attributes) differ(b Attributes) bool {
	return a.Enabled != b.Enabled || !a.Updated.Equal(b.Updated) || !a.NotBefore.Equal(b.NotBefore) || !a.Expires.Equal(b.Expires)
}

// due is when a version may begin to write: the delay after it was created, became
// valid, or was last changed, since that may have been what made it usable; and after
// a newer one was, since that may have been what made room for it. Whoever has seen
// the attributes comes to the same moment.
func (r *ring) due(m *member, now time.Time) time.Time {
	from := m.validFrom()
	for _, n := range r.members {
		if n == m || r.newer(n, m) {
			from = latest(from, n.changed(now))
		}
	}
	return from.Add(r.delay)
}

// changed is when a version last was, by somebody or by expiring.
func (m *member) changed(now time.Time) time.Time {
	at := latest(m.attrs.Created, m.attrs.Updated)
	if !m.attrs.Expires.After(now) {
		at = latest(at, m.attrs.Expires)
	}
	return at
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// A step is what there is to do next, or how long there is nothing.
type step struct {
	look, verify, adopt *member // at most one is set
	// wait is zero if only a poll can bring news.
	wait time.Duration
}

// candidates are the versions that may write next: the usable ones that are newer
// than the one that writes, the newest first.
func (r *ring) candidates(now time.Time) (found []*member) {
	for _, m := range slices.Backward(r.members) {
		if r.writes != nil && !r.newer(m, r.writes) {
			break
		}
		if m.barred(now) == Success {
			found = append(found, m)
		}
	}
	return found
}

// next says what to do at a moment. One candidate counts, the newest: an older one
// that would have its turn first is passed over. Only while the newest fails, the
// one before it does: it may be a version that no longer exists.
func (r *ring) next(now moment) step {
	var s step
	if r.writes == nil {
		return s
	}
	for _, m := range r.candidates(now.vault) {
		wait := s.wait
		s = r.nextFor(m, now)
		if s.wait > 0 && wait > 0 {
			s.wait = min(wait, s.wait)
		}
		if !m.failing(now) {
			break
		}
	}
	return s
}

func (m *member) failing(now moment) bool { return now.here.Before(m.retry) }

func (r *ring) nextFor(m *member, now moment) step {
	left := r.due(m, now.vault).Sub(now.vault)
	// stale reports whether what was done at t does not do for the switch.
	stale := func(t time.Time) bool {
		return t.IsZero() || t.Before(now.here.Add(left-lastLook)) || now.here.Sub(t) > r.fresh
	}
	near := left <= lastLook
	switch {
	case !m.proven.IsZero() && !near:
		return step{wait: left - lastLook}
	case m.failing(now):
		return step{wait: m.retry.Sub(now.here)}
	case near && stale(m.looked):
		return step{look: m}
	case m.proven.IsZero() || stale(m.proven):
		return step{verify: m}
	case left > 0:
		return step{wait: left}
	}
	return step{adopt: m}
}

// verified notes a good round trip under a version.
func (m *member) verified(here time.Time) {
	m.mended()
	m.proven = here
}

// failed notes one that was not. Each that lasts doubles the pause.
func (m *member) failed(here time.Time, lasts bool) {
	pause := verifyAgain
	if lasts {
		pause = min(max(2*m.pause, verifyAgain), verifySeldom)
	}
	m.proven, m.pause, m.retry = time.Time{}, pause, here.Add(pause)
}

// mended has the next round trip come at once.
func (m *member) mended() { m.pause, m.retry = 0, time.Time{} }
