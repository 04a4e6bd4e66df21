package health

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"azure-kms-plugin/keyvault"
)

const (
	metadataRetry = time.Hour           // after a GET was denied
	pollLasts     = 3 * probePeriod     // a poll takes the place of a GET
	expiryAhead   = 30 * 24 * time.Hour // how long before its expiry a key is warned about
	expiryAgain   = 24 * time.Hour
)

// A sight is what the attributes of the version that writes have told. The GET
// that brings them is the prober's, or a following keyring's look at the newest
// version when that is the one that writes.
type sight struct {
	log *zap.Logger

	mu      sync.Mutex
	key     keyvault.Ref
	denied  bool
	refused bool      // the last look at the newest version was denied
	next    time.Time // when a denied GET is tried again
	polled  time.Time // when a look at the newest version has shown the one that writes
	regular bool      // such looks come often enough to take the place of a GET
	expires time.Time
	warned  time.Time // of the expiry
}

// of forgets what was seen of another version.
func (s *sight) of(key keyvault.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.key.SameVersion(key) {
		s.key, s.polled, s.regular, s.expires, s.warned = key, time.Time{}, false, time.Time{}, time.Time{}
	}
}

// due reports whether a GET of the prober's own can tell anything new.
func (s *sight) due(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied {
		return !now.Before(s.next)
	}
	return !s.regular || now.Sub(s.polled) >= pollLasts
}

// untilHalf is how long it is until halfway between two looks at the newest version,
// which bring one answer of the vault each, as a decrypt does.
func (s *sight) untilHalf(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	half := probePeriod - now.Sub(s.polled)
	if half < -probePeriod/2 {
		half += 2 * probePeriod
	}
	return max(half, 0)
}

// deny notes that the identity may not look, and reports whether that is news.
func (s *sight) deny(now time.Time, reason keyvault.Reason) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = now.Add(metadataRetry)
	news = !s.denied
	if news {
		s.log.Warn("the identity may not get the key's attributes: that is optional, running without them", zap.String("reason", string(reason)))
	}
	s.denied = true
	return news
}

// refuse notes whether a look at the newest version was denied, and reports whether it
// is and was not before.
func (s *sight) refuse(denied bool) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = denied && !s.refused
	s.refused = denied
	return news
}

// see takes in attributes, of whichever version, from a poll or a GET of the prober's.
func (s *sight) see(now time.Time, a keyvault.Attributes, polled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied {
		s.denied = false
		s.log.Info("the identity may get the key's attributes again")
	}
	if !a.Key.SameVersion(s.key) {
		return
	}
	s.expires = a.Expires
	if polled {
		s.regular = !s.polled.IsZero() && now.Sub(s.polled) < pollLasts
		s.polled = now
	}
	left := a.Expires.Sub(clockOf(a, now))
	if a.Expires.IsZero() || left <= 0 || left > expiryAhead || now.Sub(s.warned) < expiryAgain {
		return
	}
	s.warned = now
	s.log.Warn("the key version will expire, and can then only decrypt: extend its validity or rotate the key",
		zap.Stringer("key", a.Key), zap.Time("expires", a.Expires.UTC()))
}

// clockOf is the vault's time, if it told it.
func clockOf(a keyvault.Attributes, now time.Time) time.Time {
	if a.Date.IsZero() {
		return now
	}
	return a.Date
}

func (s *sight) allowed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.denied
}

func (s *sight) expiry() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expires
}
