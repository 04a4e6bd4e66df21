package keyvault

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// pollAgain is the pause after a first failed look at the newest version.
	pollAgain = 5 * time.Second
	// lateAfter is how long nothing can move, whatever the vault does: no call
	// made here may take longer than a small part of it.
	lateAfter = 90 * time.Second
	// maxRest bounds a rest, so that a beat comes at least so often, and minRest
	// does, so that no mistake here can hammer the vault.
	maxRest = 30 * time.Second
	minRest = 100 * time.Millisecond
)

// A guide tells a keyring about new versions.
type guide interface {
	// round does one thing that is due, and returns how long nothing will be.
	round(ctx context.Context) time.Duration
}

// A pulse shows that Run gets on.
type pulse struct {
	born time.Time
	// beat is kept as a duration, because those are measured by a clock that nobody sets.
	beat atomic.Int64
}

func (p *pulse) tick() { p.beat.Store(int64(time.Since(p.born))) }

// Run looks for new versions until ctx ends: a pinned keyring to report them, a
// following one to write with them. It returns nil.
func (k *Keyring) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		k.pulse.tick()
		timer := time.NewTimer(min(max(k.guide.round(ctx), minRest), maxRest))
		k.pulse.tick()
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return nil
}

// Late returns an error if Run is not getting on, which no vault can cause.
func (k *Keyring) Late() error {
	if age := time.Since(k.pulse.born) - time.Duration(k.pulse.beat.Load()); age > lateAfter {
		return fmt.Errorf("the look for new key versions has not moved for %s", age.Round(time.Second))
	}
	return nil
}

// A poll looks at the newest version now and then.
type poll struct {
	cfg    *KeyringConfig
	every  time.Duration
	advice string    // beside a denied permission
	at     time.Time // the next one
	failed int       // in a row
}

// due reports whether the time has come.
func (p *poll) due() bool { return !time.Now().Before(p.at) }

// look asks, and says when to ask again. urgent: without an answer there is no
// version to write with. ok is false if there is no answer, or no use for it any more.
func (p *poll) look(ctx context.Context, urgent bool) (a Attributes, ok bool) {
	key := p.cfg.Write.WithVersion("")
	a, err := p.cfg.Directory.Get(Background(ctx), key)
	if ctx.Err() != nil {
		return a, false
	}
	failure := asOwn(OpGet, key, err)
	if failure != nil && failure.Reason == AccessDenied && p.advice != "" {
		told := *failure
		told.Text += "; " + p.advice
		failure = &told
	}
	pause := p.every
	if failure == nil {
		p.failed = 0
		// Its ID spells the host as the vault likes; key IDs follow ours.
		a.Key = key.WithVersion(a.Key.Version)
	} else if p.failed++; p.failed == 1 || urgent {
		pause = min(pause, pollAgain)
	}
	p.rest(pause)
	p.tell(a, failure)
	return a, failure == nil
}

func (p *poll) tell(a Attributes, failure *Error) {
	if p.cfg.OnPoll != nil {
		p.cfg.OnPoll(a, failure)
	}
}

// soon has the next look come before its time.
func (p *poll) soon() { p.rest(min(p.every, pollAgain)) }

func (p *poll) rest(pause time.Duration) {
	p.at = time.Now().Add(time.Duration(float64(pause) * (0.9 + 0.2*mathrand.Float64())))
}

// asOwn makes an error one of this package's.
func asOwn(op Op, ref Ref, err error) *Error {
	if err == nil {
		return nil
	}
	if e := asError(err); e != nil {
		return e
	}
	return &Error{Op: op, Key: ref, Reason: Unknown, Text: where(ref) + ": unexpected failure of the client", Err: err}
}
