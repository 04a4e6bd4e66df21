package keyvault

import (
	"slices"
	"strings"
	"time"
)

// verifyAgain is the pause after a failed round trip under a version that does
// not write yet.
const verifyAgain = 10 * time.Second

// A ring decides which version of a key writes, for a keyring that follows the
// newest one. It is a value: no clock, no lock, no I/O. All its times are the
// vault's own, so that replicas that never meet switch at the same moment.
type ring struct {
	// delay is how long after a version has become usable it begins to write.
	delay time.Duration
	// fresh is how old a good round trip may be at the switch.
	fresh time.Duration

	members []*member // oldest first
	newest  string    // the version that the vault names as the current one
	writes  *member   // nil before begin or resume
}

// A member is one version.
type member struct {
	ref   Ref
	attrs Attributes // as last seen; only Created is set on one that is resumed
	seen  time.Time  // when; zero for one that is resumed
	// usable is when it was first seen able to encrypt after it had not been.
	usable time.Time
	proven time.Time // last good round trip
	retry  time.Time // after a failed one: no other before
}

// due is when it may begin to write. Whoever has seen the same states of the
// version comes to the same moment.
func (m *member) due(delay time.Duration) time.Time {
	from := m.attrs.Created
	for _, t := range []time.Time{m.attrs.NotBefore, m.usable} {
		if t.After(from) {
			from = t
		}
	}
	return from.Add(delay)
}

// barred says why it cannot encrypt; Success if its attributes do not keep it from that.
func (m *member) barred(now time.Time) Reason {
	reason, _ := m.attrs.Barred(now)
	return reason
}

// see takes in what the vault tells of the version.
func (m *member) see(a Attributes, now time.Time) {
	was := Success
	if !m.seen.IsZero() {
		was = m.barred(now)
	}
	since := m.seen.Truncate(time.Second)
	m.attrs, m.seen = a, now
	if m.barred(now) == Success && (was == KeyDisabled || was == KeyExpired) {
		// The change itself has a time that all replicas see. Where it is not
		// that of this change, the moment it was noticed has to do.
		m.usable = now
		if !a.Updated.Before(since) && !a.Updated.After(now) {
			m.usable = a.Updated
		}
	}
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
func (r *ring) learn(now time.Time, newest Attributes, listed []Attributes) (learned []Ref) {
	r.newest = newest.Key.Version
	for _, a := range append(slices.Clone(listed), newest) {
		m := r.find(a.Key.Version)
		if m == nil {
			m = &member{ref: a.Key}
			r.members = append(r.members, m)
			learned = append(learned, a.Key)
		}
		m.see(a, now)
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

// newer compares by creation, which has a resolution of a second; the vault's
// own choice decides between two of the same one.
func (r *ring) newer(a, b *member) bool {
	if a == b {
		return false
	}
	if a.attrs.Created.Equal(b.attrs.Created) {
		return strings.EqualFold(a.ref.Version, r.newest)
	}
	return a.attrs.Created.After(b.attrs.Created)
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

// mayHaveWritten reports whether a version has been around for long enough, and has
// not been disabled from its creation on.
func (m *member) mayHaveWritten(now time.Time, delay time.Duration) bool {
	stillborn := !m.attrs.Enabled && !m.attrs.Updated.After(m.attrs.Created)
	return !stillborn && now.Sub(m.attrs.Created) >= delay && !now.Before(m.attrs.NotBefore)
}

// resume begins with the version that the process before this one wrote with.
func (r *ring) resume(ref Ref, created time.Time) {
	m := &member{ref: ref, attrs: Attributes{Key: ref, Created: created}}
	r.members = []*member{m}
	r.writes = m
}

// A step is what there is to do next.
type step struct {
	// verify and adopt name a version, or none.
	verify, adopt *member
	// again is when to ask the next time; zero if only a poll can bring news.
	again time.Time
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
func (r *ring) next(now time.Time) step {
	var s step
	if r.writes == nil {
		return s
	}
	for _, m := range r.candidates(now) {
		again := s.again
		s = r.nextFor(m, now)
		if s.again.IsZero() || !again.IsZero() && again.Before(s.again) {
			s.again = again
		}
		if !m.failing(now) {
			break
		}
	}
	return s
}

func (m *member) failing(now time.Time) bool { return now.Before(m.retry) }

func (r *ring) nextFor(m *member, now time.Time) step {
	due := m.due(r.delay)
	// A round trip from here on will still be fresh at the switch.
	early := due.Add(-r.fresh / 2)
	switch {
	case m.proven.IsZero(),
		!now.Before(early) && m.proven.Before(early),
		!now.Before(due) && now.Sub(m.proven) > r.fresh:
		if m.failing(now) {
			return step{again: m.retry}
		}
		return step{verify: m}
	case !now.Before(due):
		return step{adopt: m}
	case now.Before(early):
		return step{again: early}
	}
	return step{again: due}
}

// verified notes the end of a round trip under a version.
func (r *ring) verified(m *member, now time.Time, ok bool) {
	if ok {
		m.proven, m.retry = now, time.Time{}
	} else {
		m.proven, m.retry = time.Time{}, now.Add(verifyAgain)
	}
}
