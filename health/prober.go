package health

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"azure-kms-plugin/keyvault"
)

const (
	probePeriod   = 30 * time.Second
	probeRetry    = 5 * time.Second  // after the first failure; then probePeriod
	refusedPeriod = 27 * time.Second // while encrypt is refused: a try comes every other time, so within a minute
	// keyStateHot is how long probeRetry goes on after a key-state failure: its
	// grace is shorter than probePeriod, and a key that is back within it is not lost.
	keyStateHot = time.Minute
)

// Vault is what a Prober asks. Its errors are [*keyvault.Error].
type Vault interface {
	Get(ctx context.Context, key keyvault.Ref) (keyvault.Attributes, error)
	Encrypt(ctx context.Context, key keyvault.Ref, plaintext []byte) ([]byte, error)
	Decrypt(ctx context.Context, key keyvault.Ref, ciphertext []byte) ([]byte, error)
}

// ProberConfig configures a Prober. Vault and Tracker are required.
type ProberConfig struct {
	Vault   Vault
	Tracker *Tracker    // says which version writes
	Uses    *Uses       // what is seen of versions goes there, and is kept with the rest; nil for nowhere
	Memory  *Memory     // where the canary is kept; nil for nowhere
	Logger  *zap.Logger // nil for none
}

// A Prober looks at the key when nobody else does: a GET and a decrypt of the
// canary in turn, every 30 seconds, so that each comes once a minute. While the
// vault refuses to encrypt, an encrypt takes the place of the GET. A look at the
// newest version takes its place as well, and the decrypts then come halfway between
// two of those. What makes a decrypt worth more than usual brings it at once.
type Prober struct {
	cfg   ProberConfig
	sight sight

	// Owned by Run.
	key       keyvault.Ref // the version that writes
	canary    *canary      // of that version
	leftAlone time.Time    // until when the vault has asked to be left alone
	tried     time.Time    // when a decrypt last ended

	born   time.Time
	beat   atomic.Int64 // when Run last began a round or a wait, in nanoseconds since born
	probed [2]atomic.Int64
}

// NewProber returns a prober that does nothing until Run.
func NewProber(cfg ProberConfig) *Prober {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Uses == nil {
		cfg.Uses = NewUses(nil)
	}
	return &Prober{cfg: cfg, sight: sight{log: cfg.Logger}, born: time.Now()}
}

// Run probes at once, whenever another version begins to write, and now and then,
// until ctx ends. It returns nil.
func (p *Prober) Run(ctx context.Context) error {
	defer p.save() // the seeds opened since the last probe
	last, failures := turnDecrypt, 0
	var err *keyvault.Error
	for first, asked := true, false; ; {
		p.tick()
		key, changed := p.cfg.Tracker.Key()
		if !key.SameVersion(p.key) {
			p.turnTo(key)
			first, failures, err = true, 0, nil
		}
		pause := probePeriod
		if key.Version != "" { // else there is nothing to probe yet
			last = p.next(first || asked || err != nil, last)
			err = p.probe(ctx, last)
			if last == turnDecrypt && err == nil && failures > 0 && p.cfg.Tracker.writeRefused() {
				// What was mended is likely to have been refused together.
				last = turnEncrypt
				err = p.probe(ctx, last)
			}
			p.save()
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				failures++
			} else {
				failures = 0
			}
			first, pause = false, p.pause(last, failures, err)
		}
		p.tick()
		if asked = p.rest(ctx, pause, changed); ctx.Err() != nil {
			return nil
		}
	}
}

// turnTo begins with another version.
func (p *Prober) turnTo(key keyvault.Ref) {
	p.key, p.canary = key, nil
	p.sight.of(key)
	if p.cfg.Memory != nil {
		p.canary = p.cfg.Memory.canary(key)
	}
}

// Polled takes in a look at the newest version that somebody else has had.
func (p *Prober) Polled(a keyvault.Attributes, err *keyvault.Error) {
	if err != nil {
		p.cfg.Tracker.unknown(err) // which counts while no version is known
		p.doubt(err)
		return
	}
	p.sight.see(time.Now(), a, true)
	p.cfg.Uses.See(a)
	if key, _ := p.cfg.Tracker.Key(); a.Key.SameVersion(key) {
		p.stamp(0)
		p.examine(a)
	}
}

// A turn is what a round asks.
type turn int

const (
	turnDecrypt turn = iota
	turnGet
	turnEncrypt
	turnRest // nothing: a look at the newest version tells what a GET would
)

// next says what to ask after the last turn. Only a decrypt can end a failure,
// so nothing else is asked while there is one. A refused encrypt takes the GET's
// turns, since only an encrypt can end that.
func (p *Prober) next(failing bool, last turn) turn {
	refused := p.cfg.Tracker.writeRefused()
	switch {
	case failing || refused && last == turnEncrypt || !refused && last != turnDecrypt:
		return turnDecrypt
	case refused:
		return turnEncrypt
	case p.sight.due(time.Now()):
		return turnGet
	case p.sight.allowed():
		return turnRest
	}
	return turnDecrypt
}

// pause is how long to wait after a probe. The jitter keeps the replicas of a
// control plane from asking at the same moment for ever.
func (p *Prober) pause(last turn, failures int, err *keyvault.Error) time.Duration {
	d := probePeriod
	since := p.cfg.Tracker.keyStateSince()
	switch {
	case err == nil && p.cfg.Tracker.writeRefused():
		d = refusedPeriod
	case err != nil && err.Remembered && wantsPause(err):
		// The vault was not asked, and how long it asked to be left alone says
		// nothing about how much of that is left.
		if rest := time.Until(p.leftAlone); rest > 0 {
			d = min(rest, d)
		}
		return d + time.Duration(float64(d)*0.1*mathrand.Float64())
	case err != nil && wantsPause(err):
		// Asked to be left alone. The bound keeps the prober inside what
		// Late tolerates.
		d = min(max(d, err.RetryAfter), 2*probePeriod)
		p.leftAlone = time.Now().Add(d)
	case failures == 1, !since.IsZero() && time.Since(since) < keyStateHot:
		d = probeRetry
	case last == turnRest:
		d = p.sight.untilHalf(time.Now())
	}
	return time.Duration(float64(d) * (0.9 + 0.2*mathrand.Float64()))
}

// probe makes one round and reports its failure, if it says anything about the key.
func (p *Prober) probe(ctx context.Context, t turn) *keyvault.Error {
	ctx = keyvault.Background(ctx)
	switch t {
	case turnRest:
		return nil
	case turnGet:
		defer p.stamp(0)
		return p.look(ctx)
	case turnEncrypt:
		if err := p.encrypt(ctx); err != nil && !denied(err) {
			return err
		}
		return nil // or known before
	}
	defer func() {
		p.stamp(1)
		p.tried = time.Now()
	}()
	p.cfg.Tracker.answering()
	err := p.roundTrip(ctx)
	if err != nil {
		p.cfg.Tracker.unprobed(p.key, keyvault.Outcome{Op: keyvault.OpDecrypt, Key: p.key, Err: err, Time: time.Now()})
	}
	return err
}

// tick notes that Run gets on. It keeps a duration, because those are measured
// by a clock that nobody sets.
func (p *Prober) tick() { p.beat.Store(int64(time.Since(p.born))) }

func (p *Prober) stamp(i int) { p.probed[i].Store(time.Now().Unix()) }

// look gets the key's attributes.
func (p *Prober) look(ctx context.Context) *keyvault.Error {
	attrs, err := p.cfg.Vault.Get(ctx, p.key)
	if e := p.report(ctx, keyvault.OpGet, err); e != nil {
		if !denied(e) {
			return e
		}
		p.sight.deny(time.Now(), e.Reason)
		return nil
	}
	if err != nil {
		return nil // stopping
	}
	attrs.Key = p.key
	p.sight.see(time.Now(), attrs, false)
	p.cfg.Uses.See(attrs)
	return p.examine(attrs)
}

// examine says what the attributes of the version that writes mean for it. What
// asking again soon would not mend is told, and not returned.
func (p *Prober) examine(a keyvault.Attributes) *keyvault.Error {
	now := time.Now()
	if !a.Created.IsZero() {
		p.cfg.Tracker.created(a.Key, now.Add(a.Created.Sub(clockOf(a, now))))
	}
	reason, text := a.Barred(clockOf(a, now))
	if reason == keyvault.Success {
		p.cfg.Tracker.writable(a.Key)
		return nil
	}
	e := &keyvault.Error{Op: keyvault.OpGet, Key: a.Key, Reason: reason, Text: text}
	p.cfg.Tracker.Observe(keyvault.Outcome{Op: keyvault.OpGet, Key: a.Key, Err: e, Time: time.Now()})
	if reason.Kind() == keyvault.KindWriteOnly {
		return nil
	}
	return e
}

// roundTrip decrypts the canary, after making one if there is none.
func (p *Prober) roundTrip(ctx context.Context) *keyvault.Error {
	fresh := p.canary == nil
	if fresh {
		if err := p.encrypt(ctx); err != nil || p.canary == nil {
			return err
		}
	}
	plaintext, err := p.cfg.Vault.Decrypt(ctx, p.key, p.canary.Ciphertext)
	if err == nil && p.canary.matches(plaintext) {
		p.cfg.Tracker.canary(p.key, time.Now(), nil)
		return nil
	}
	if err != nil {
		e := p.report(ctx, keyvault.OpDecrypt, err)
		if e == nil || e.Reason.Kind() != keyvault.KindCaller || e.Reason == keyvault.Canceled {
			return e
		}
	}
	// The vault answers, but cannot open the canary or opens it to something
	// else. If it is an old one, it may be the canary that is broken, so a new
	// one is made at once; a second failure is the vault's.
	p.canary = nil
	if !fresh {
		return p.roundTrip(ctx)
	}
	e := &keyvault.Error{
		Op: keyvault.OpDecrypt, Key: p.key, Reason: keyvault.Unknown,
		Text: p.key.Where() + ": what the vault has just encrypted does not decrypt to the same bytes",
	}
	p.cfg.Tracker.canary(p.key, time.Now(), e)
	return e
}

func (p *Prober) encrypt(ctx context.Context) *keyvault.Error {
	plaintext := make([]byte, 32)
	rand.Read(plaintext)
	ciphertext, err := p.cfg.Vault.Encrypt(ctx, p.key, plaintext)
	if e := p.report(ctx, keyvault.OpEncrypt, err); e != nil {
		return e
	}
	if err == nil { // else stopping, and the old canary stays
		p.canary = newCanary(plaintext, ciphertext)
	}
	return nil
}

// report hands an outcome to the tracker and returns its failure. The client
// reports it as well; the tracker keeps the first, so that does no harm, and
// this package does not depend on it. A decrypt is no success before its
// plaintext was compared, so those are not reported here.
func (p *Prober) report(ctx context.Context, op keyvault.Op, err error) *keyvault.Error {
	if ctx.Err() != nil && err != nil {
		return nil // stopping says nothing about the vault
	}
	var e *keyvault.Error
	if err != nil && !errors.As(err, &e) {
		e = &keyvault.Error{Op: op, Key: p.key, Reason: keyvault.Unknown, Text: p.key.Where() + ": unexpected failure of the client", Err: err}
	}
	p.cfg.Tracker.Observe(keyvault.Outcome{Op: op, Key: p.key, Err: e, Time: time.Now()})
	return e
}

func (p *Prober) save() {
	if p.cfg.Memory != nil && p.key.Version != "" {
		if key, state := p.cfg.Tracker.snapshot(); key.SameVersion(p.key) {
			p.cfg.Memory.save(key, p.canary, state, p.cfg.Tracker.seeds.bytes(), p.cfg.Uses.snapshot())
		}
	}
}

// Late returns an error if Run is not getting on: nothing has moved for three
// periods, which no vault can cause.
func (p *Prober) Late() error {
	if age := time.Since(p.born) - time.Duration(p.beat.Load()); age > 3*probePeriod {
		return fmt.Errorf("the prober has not moved for %s", age.Round(time.Second))
	}
	return nil
}

// MetadataAccess reports whether the identity may get the key's attributes, as
// far as is known.
func (p *Prober) MetadataAccess() bool { return p.sight.allowed() }

// Expires is when the version that writes expires; zero for never or unknown.
func (p *Prober) Expires() time.Time { return p.sight.expiry() }

// LastGet and LastDecrypt are when the last probes ended; zero for never.
func (p *Prober) LastGet() time.Time     { return p.at(0) }
func (p *Prober) LastDecrypt() time.Time { return p.at(1) }

func (p *Prober) at(i int) time.Time {
	if s := p.probed[i].Load(); s != 0 {
		return time.Unix(s, 0)
	}
	return time.Time{}
}
