package keyvault

import (
	"context"
	"fmt"
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
)

// A vault answers 404 for a key that never was, a deleted one, a purged one and a
// missing version alike. What can be done about it differs, so a missing key is
// looked for among the deleted ones, and its name among the live ones. Neither
// look is needed: both may be denied.

// explain says more of a KeyNotFound, if more is known or can be learned now.
func (c *Client) explain(ctx context.Context, failure *Error) *Error {
	if failure == nil || failure.Reason != KeyNotFound {
		return failure
	}
	key := findingKey(failure.Key)
	f, mine := c.found.claim(key, time.Now())
	if deadline, _ := ctx.Deadline(); mine && time.Until(deadline) >= minLook {
		f = c.look(ctx, failure.Key).after(f, time.Now())
		f.until = time.Now().Add(lookEvery)
		c.found.put(key, f)
	}
	if f.reason == "" {
		return failure
	}
	e := *failure
	e.Reason, e.Missing, e.PurgeAt = f.reason, f.missing, f.purgeAt
	e.Text = fmt.Sprintf("%s: %s (%s)%s", where(e.Key), f.seen, httpText(&e, ""), f.mend)
	return &e
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

	var attributes Attributes
	deleted := ask(func(ctx context.Context, keys *azkeys.Client, cl *call) (err error) {
		attributes, err = getDeleted(ctx, keys, cl)
		return err
	})
	if deleted == nil {
		f := finding{reason: KeyDeleted, purgeAt: attributes.ScheduledPurge, seen: "the key is deleted, and can be recovered", mend: mend(&Error{Reason: KeyDeleted, Key: ref})}
		if !f.purgeAt.IsZero() {
			f.seen += " until " + f.purgeAt.UTC().Format(time.RFC3339)
		}
		return f
	}
	live := ask(func(ctx context.Context, keys *azkeys.Client, _ *call) error {
		_, err := keys.GetKey(ctx, ref.Name, "", nil)
		return err
	})
	switch {
	case live == nil && ref.Version != "":
		return finding{
			reason: KeyNotFound, missing: MissingVersion, seen: "the key exists, but not this version of it",
			mend: "; check the version; one that is some minutes old may not have reached this replica yet, and a key that was made anew under the same name opens nothing older",
		}
	case live == nil:
		return finding{reason: KeyNotFound, seen: "the key was not there, and is now", mend: "; it has just been made or recovered: the next try will tell"}
	case live.Reason == KeyNotFound && deleted.Reason == KeyNotFound:
		return finding{reason: KeyNotFound, missing: MissingKey}
	case deleted.Reason == AccessDenied && ref.IsHSM():
		return finding{
			reason: KeyNotFound, seen: "no such key or version, or it is deleted: " + officerOnly,
			mend: mend(&Error{Reason: KeyNotFound}),
		}
	case deleted.Reason == AccessDenied:
		return finding{
			reason: KeyNotFound, seen: `no such key or version, or it is deleted: without the key permission "get" these cannot be told apart`,
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
