package keyvault

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
)

const (
	// lookEvery is the shortest time between two looks for one missing key. A
	// vault shows a deleted key only some seconds later.
	lookEvery = 10 * time.Second
	// lookBudget bounds a look, and a call with less than minLook left makes none:
	// the caller has its answer already, and only waits for a better one.
	lookBudget = time.Second
	minLook    = 200 * time.Millisecond
	// maxFindings bounds the memory of what was found.
	maxFindings = 256
)

// A vault answers 404 for a key that never was, a deleted one, a purged one and a
// missing version alike. What can be done about it differs, so a missing key is
// looked for among the deleted ones, and its name among the live ones. Neither
// look is needed: both may be denied.
type finding struct {
	until  time.Time // no other look before
	reason Reason    // KeyDeleted or KeyNotFound; empty if nothing was learned
	seen   string
	mend   string
}

// findings is what was found, by key. It is safe for concurrent use.
type findings struct {
	mu   sync.Mutex
	keys map[string]finding // by lower-case host and name; guarded by mu
}

// explain says more of a KeyNotFound, if more is known or can be learned now.
func (c *Client) explain(ctx context.Context, failure *Error) *Error {
	if failure == nil || failure.Reason != KeyNotFound {
		return failure
	}
	key := strings.ToLower(failure.Key.Host + "/" + failure.Key.Name)
	f, mine := c.found.claim(key, time.Now())
	if deadline, _ := ctx.Deadline(); mine && time.Until(deadline) >= minLook {
		f = c.look(ctx, failure.Key)
		f.until = time.Now().Add(lookEvery)
		c.found.put(key, f)
	}
	if f.reason == "" {
		return failure
	}
	e := *failure
	e.Reason = f.reason
	e.Text = fmt.Sprintf("%s: %s (%s)%s", where(e.Key), f.seen, httpText(&e, ""), f.mend)
	return &e
}

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

// look asks what has become of a key.
func (c *Client) look(ctx context.Context, ref Ref) finding {
	ctx, cancel := context.WithTimeout(ctx, lookBudget)
	defer cancel()
	deadline, _ := ctx.Deadline()
	ask := func(fn func(context.Context, *azkeys.Client, *call) error) *Error {
		cl := &call{op: OpGet, ref: ref.WithVersion(""), budget: time.Until(deadline)}
		return c.guarded(cl.context(ctx, deadline, false, true), cl, fn)
	}

	var deleted Attributes
	failure := ask(func(ctx context.Context, keys *azkeys.Client, cl *call) (err error) {
		deleted, err = getDeleted(ctx, keys, cl)
		return err
	})
	if failure == nil {
		f := finding{reason: KeyDeleted, seen: "the key is deleted, and can be recovered", mend: mend(&Error{Reason: KeyDeleted})}
		if !deleted.ScheduledPurge.IsZero() {
			f.seen += " until " + deleted.ScheduledPurge.UTC().Format(time.RFC3339)
		}
		return f
	}
	unseen := failure.Reason == AccessDenied
	failure = ask(func(ctx context.Context, keys *azkeys.Client, _ *call) error {
		_, err := keys.GetKey(ctx, ref.Name, "", nil)
		return err
	})
	switch {
	case failure == nil && ref.Version != "":
		return finding{
			reason: KeyNotFound, seen: "the key exists, but not this version of it",
			mend: "; check the version; one that is some minutes old may not have reached this replica yet, and a key that was made anew under the same name opens nothing older",
		}
	case unseen && ref.IsHSM():
		return finding{
			reason: KeyNotFound, seen: "no such key or version, or it is deleted: " + officerOnly,
			mend: mend(&Error{Reason: KeyNotFound}),
		}
	}
	return finding{}
}

// officerOnly is why a Managed HSM does not say more.
const officerOnly = `only the role "Managed HSM Crypto Officer" sees deleted keys`

// getDeleted asks for a deleted key.
func getDeleted(ctx context.Context, keys *azkeys.Client, cl *call) (Attributes, error) {
	r, err := keys.GetDeletedKey(ctx, cl.ref.Name, nil)
	if err != nil {
		return Attributes{}, err
	}
	if r.Key == nil || r.DeletedDate == nil {
		return Attributes{}, cl.odd(errIncomplete)
	}
	out := Attributes{Key: cl.ref}
	if r.Attributes != nil {
		out = attributes(cl.ref, r.Attributes)
	}
	out.Deleted, out.ScheduledPurge, out.Date = timeOf(r.DeletedDate), timeOf(r.ScheduledPurgeDate), cl.date()
	return out, nil
}
