package keyvault

import (
	"strings"
	"sync"
	"time"
)

const (
	// maxFindings bounds the memory of what was found.
	maxFindings = 256
	// goneAfter is how long a key must be neither live nor deleted to count as gone. A
	// vault shows a deleted key seconds late, and a recovered one too.
	goneAfter = 30 * time.Second
)

// A finding is what a look for a missing key has shown.
type finding struct {
	until   time.Time // no other look before
	reason  Reason    // KeyDeleted or KeyNotFound; empty if nothing was learned
	missing Missing
	purgeAt time.Time
	seen    string
	mend    string

	// What went before, since the key was last used with success: that it was seen
	// among the deleted ones, and since when it has been in neither place.
	wasDeleted bool
	goneSince  time.Time
}

// findings is what was found, by key. It is safe for concurrent use.
type findings struct {
	mu   sync.Mutex
	keys map[string]finding // by lower-case host and name; guarded by mu
}

func findingKey(ref Ref) string { return strings.ToLower(ref.Host + "/" + ref.Name) }

// after draws the conclusion from a look and those before it. One that was kept from
// seeing anything leaves what they have shown. A key that is in neither place may have
// been deleted or recovered a moment ago: only one that stays so is gone.
func (f finding) after(last finding, now time.Time) finding {
	switch {
	case f.reason == "":
		return last
	case f.reason == KeyDeleted:
		f.wasDeleted = true
		return f
	case f.missing != MissingKey:
		return f
	}
	f.wasDeleted, f.goneSince = last.wasDeleted, last.goneSince
	if f.goneSince.IsZero() {
		f.goneSince = now
	}
	switch sure := now.Sub(f.goneSince) >= goneAfter; {
	case sure && f.wasDeleted:
		f.seen, f.mend = "the key was purged: it was deleted, and can no longer be recovered", mendPurged
	case sure:
		f.seen, f.mend = "no such key, neither live nor deleted: it was purged, or never there", "; check vault and key; if they are right:"+mendPurged[1:]
	default:
		f.missing = MissingUnknown
		f.seen, f.mend = "no such key, neither live nor deleted, which a vault also says in the seconds after a deletion or recovery", mend(&Error{Reason: KeyNotFound})
	}
	return f
}

// mendPurged is the scope of the loss, and what is left to do.
const mendPurged = "; every object whose seed was wrapped under it can be read only until kube-apiserver restarts or forgets the seed, so restart none and save what they still read; restore a backup of the key into this vault (az keyvault key restore), which opens all of it again, or write everything anew under another key"

// claim returns what is known of a key, and whether the caller is the one to look.
func (s *findings) claim(key string, now time.Time) (finding, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.keys[key]
	if now.Before(f.until) {
		return f, false
	}
	f.until = now.Add(lookEvery)
	if len(s.keys) >= maxFindings {
		clear(s.keys)
	}
	s.keys[key] = f
	return f, true
}

func (s *findings) put(key string, f finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key] = f
}

// used forgets what went before a success under a key.
func (s *findings) used(ref Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := findingKey(ref)
	if f, ok := s.keys[key]; ok && (f.wasDeleted || !f.goneSince.IsZero()) {
		s.keys[key] = finding{until: f.until}
	}
}
