package keyvault

import (
	"bytes"
	"context"
	"crypto/rand"
	"slices"
	"time"
)

// provenFor is how old a look and a good round trip may be at a switch that was held
// up: one period of the prober.
const provenFor = time.Minute

const followAdvice = "it is needed to find the newest version; or give the version that writes, as --key-version or in --key-url"

// A follower is the guide of a keyring that writes with the newest version that
// is ready.
type follower struct {
	cfg   FollowConfig
	keys  *Keyring
	poll  poll
	ring  ring
	clock vaultClock

	waiting map[string]Reason // what was last said of a version that cannot be adopted
	undated *Error            // why it is not known when the version that writes was created
}

// NewFollowing makes a keyring that writes with the newest version that is ready:
// at first with the one that is remembered, else with none until Run has found it.
// It makes no call before Run.
func NewFollowing(cfg FollowConfig) (*Keyring, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	k := newKeyring(cfg.KeyringConfig)
	f := &follower{cfg: cfg, keys: k, ring: ring{delay: cfg.ActivationDelay, fresh: provenFor}, waiting: map[string]Reason{}}
	f.poll = poll{cfg: &f.cfg.KeyringConfig, every: cfg.PollInterval, advice: followAdvice}
	k.guide = f
	if cfg.Memory != nil {
		if ref, created := cfg.Memory.LastVersion(); ref.Version != "" && ref.SameKey(cfg.Write) {
			ref = cfg.Write.WithVersion(ref.Version)
			f.ring.resume(ref, created)
			k.write(ref, created)
		}
	}
	return k, nil
}

func (f *follower) round(ctx context.Context) time.Duration {
	if f.poll.due() {
		f.look(ctx)
	}
	switch s := f.ring.next(f.now()); {
	case s.look != nil:
		f.look(ctx)
		s.look.looked = time.Now()
		return 0
	case s.verify != nil:
		f.verify(ctx, s.verify)
		return 0
	case s.adopt != nil:
		f.adopt(s.adopt, AdoptedByRotation)
		return 0
	default:
		wait := time.Until(f.poll.at)
		if s.wait > 0 {
			wait = min(wait, s.wait)
		}
		return max(wait, 0)
	}
}

func (f *follower) now() moment {
	here := time.Now()
	return moment{vault: f.clock.at(here), here: here}
}

// look asks for the newest version. An answer that cannot be made use of yet is
// asked for again soon.
func (f *follower) look(ctx context.Context) {
	failed := f.poll.failed > 0
	a, ok := f.poll.look(ctx, f.ring.writes == nil)
	if !ok {
		return
	}
	if failed {
		// What has kept the look from being answered may have refused the versions too.
		for _, m := range f.ring.members {
			m.mended()
		}
	}
	f.clock.set(a.Date, time.Now())
	if !f.learn(ctx, a) {
		f.poll.soon()
	}
}

// learn takes in the newest version. When it is a new one, there may be others
// that were the newest for less than a poll interval; and while it cannot write, one
// of those may become able to. It reports whether all is known that is needed.
func (f *follower) learn(ctx context.Context, a Attributes) bool {
	now := f.clock.at(time.Now())
	f.ring.guess(now)
	if a.Created.IsZero() {
		a.Created = now // the vault does tell; without it, this is the best guess
		if m := f.ring.find(a.Key.Version); m != nil {
			a.Created = m.attrs.Created
		}
	}
	var listed []Attributes
	known := f.ring.find(a.Key.Version)
	barred, _ := a.Barred(now)
	if known == nil || known != f.ring.writes && barred != Success {
		all, err := f.cfg.Vault.Versions(Background(ctx), f.cfg.Write)
		e := asOwn(OpList, f.cfg.Write, err)
		if e != nil && e.Reason.Kind() == KindFault && f.ring.writes == nil && (&member{attrs: a}).young(now, f.ring.delay) {
			// The one before it writes on all other replicas, and a fault will end.
			f.keys.lookup.known.add(a.Key)
			told := *e
			told.Text += "; the newest version is younger than the activation delay, and without the list the one that writes until then is not known"
			f.poll.tell(Attributes{}, &told)
			return false
		}
		if e != nil && known == nil {
			f.keys.lookup.complain(e)
		}
		for _, v := range all {
			v.Key = f.cfg.Write.WithVersion(v.Key.Version)
			listed = append(listed, v)
		}
	}
	undated := f.ring.undated()
	if undated {
		listed = append(listed, f.date(ctx, append(slices.Clone(listed), a))...)
		if ctx.Err() != nil {
			return true
		}
	}
	learned := f.ring.learn(a, listed)
	if undated && !f.ring.undated() {
		f.keys.created(f.ring.writes.ref, f.ring.writes.attrs.Created)
	}
	f.keys.behind.Store(f.ring.behind())
	for _, ref := range learned {
		f.keys.lookup.known.add(ref)
		// The older ones are no news: they were there before this process.
		if m := f.ring.find(ref.Version); f.ring.writes != nil && f.ring.newer(m, f.ring.writes) {
			f.tell(RotationEvent{Step: VersionLearned, Key: ref, Due: f.due(m)})
		}
	}
	if f.ring.writes == nil {
		f.ring.begin(now)
		f.adopt(f.ring.writes, AdoptedAtStart)
	}
	f.explain(now)
	return true
}

// date asks for the version that writes, of which it is not known when it was created,
// unless that is among those seen. Without it, a newer one might be taken for an older
// one for ever.
func (f *follower) date(ctx context.Context, seen []Attributes) []Attributes {
	f.undated = nil
	key := f.ring.writes.ref
	if slices.ContainsFunc(seen, func(a Attributes) bool { return a.Key.SameVersion(key) }) {
		return nil
	}
	a, err := f.cfg.Directory.Get(Background(ctx), key)
	if f.undated = asOwn(OpGet, key, err); f.undated != nil || a.Created.IsZero() {
		return nil
	}
	a.Key = key
	return []Attributes{a}
}

// explain says once why the newest version will not be adopted.
func (f *follower) explain(now time.Time) {
	m := f.ring.find(f.ring.newest)
	if m == nil || m == f.ring.writes {
		return
	}
	reason, text := m.attrs.Barred(now)
	if reason == Success && !f.ring.newer(m, f.ring.writes) {
		reason, text = f.older()
		text = where(m.ref) + ": the vault names it as the newest, but " + text
	}
	if reason == Success || f.waiting[m.ref.Version] == reason {
		return
	}
	f.waiting[m.ref.Version] = reason
	f.tell(RotationEvent{Step: VersionWaiting, Key: m.ref, Err: &Error{Op: OpGet, Key: m.ref, Reason: reason, Text: text}})
}

// older says why the newest version does not count as newer than the one that writes.
func (f *follower) older() (Reason, string) {
	switch {
	case f.ring.undated() && f.undated != nil:
		return f.undated.Reason, "when the one that writes was created cannot be found out, which is tried again (" + f.undated.Text + "): a version that is made now counts as newer"
	case f.ring.undated():
		return Unknown, "the vault does not tell when the one that writes was created: a version that is made now counts as newer"
	}
	return Unknown, "it is not newer than the one that writes: make a new version if it was meant to be"
}

// verify makes a round trip under a version that does not write yet.
func (f *follower) verify(ctx context.Context, m *member) {
	err := roundTrip(Background(ctx), f.cfg.Vault, m.ref)
	if ctx.Err() != nil {
		return
	}
	first := m.proven.IsZero()
	if err != nil {
		// Before its time there is no hurry to give up: another region may be about to
		// learn of it.
		overdue := !f.now().vault.Before(f.due(m))
		m.failed(time.Now(), overdue && err.Reason.Kind() != KindFault)
		if f.waiting[m.ref.Version] != err.Reason {
			f.waiting[m.ref.Version] = err.Reason
			f.tell(RotationEvent{Step: VersionWaiting, Key: m.ref, Due: f.due(m), Err: err})
		}
		return
	}
	m.verified(time.Now())
	delete(f.waiting, m.ref.Version)
	if first {
		f.tell(RotationEvent{Step: VersionVerified, Key: m.ref, Due: f.due(m)})
	}
}

// roundTrip proves that a version decrypts what it encrypts.
func roundTrip(ctx context.Context, v Vault, ref Ref) *Error {
	secret := make([]byte, 32)
	rand.Read(secret)
	block, err := v.Encrypt(ctx, ref, secret)
	if err != nil {
		return asOwn(OpEncrypt, ref, err)
	}
	plain, err := v.Decrypt(ctx, ref, block)
	switch {
	case err != nil:
		return asOwn(OpDecrypt, ref, err)
	case !bytes.Equal(plain, secret):
		return &Error{Op: OpDecrypt, Key: ref, Reason: Unknown, Text: where(ref) + ": what the vault has just encrypted does not decrypt to the same bytes"}
	}
	return nil
}

// adopt makes a version the one that writes.
func (f *follower) adopt(m *member, cause AdoptCause) {
	now := f.now()
	e := RotationEvent{
		Step: VersionAdopted, Key: m.ref, From: f.keys.WriteKey(), Cause: cause, Due: f.due(m), Proven: m.proven,
		Settled: now.here.Add(m.attrs.Created.Add(f.ring.delay).Sub(now.vault)),
	}
	f.ring.writes = m
	f.keys.write(m.ref, m.attrs.Created)
	f.keys.behind.Store(f.ring.behind())
	f.tell(e)
}

func (f *follower) due(m *member) time.Time { return f.ring.due(m, f.now().vault) }

func (f *follower) tell(e RotationEvent) {
	if f.cfg.OnEvent != nil {
		f.cfg.OnEvent(e)
	}
}
