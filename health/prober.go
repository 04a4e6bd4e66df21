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
	metadataRetry = time.Hour        // after a GET was denied
)

// Vault is what a Prober asks. Its errors are [*keyvault.Error].
type Vault interface {
	Get(ctx context.Context, key keyvault.Ref) (keyvault.Attributes, error)
	Encrypt(ctx context.Context, key keyvault.Ref, plaintext []byte) ([]byte, error)
	Decrypt(ctx context.Context, key keyvault.Ref, ciphertext []byte) ([]byte, error)
}

// ProberConfig configures a Prober. All fields but Memory and Logger are required.
type ProberConfig struct {
	Vault   Vault
	Key     keyvault.Ref // the version that writes
	Tracker *Tracker
	Memory  *Memory     // where the canary is kept; nil for nowhere
	Logger  *zap.Logger // nil for none
}

// A Prober looks at the key when nobody else does: a GET and a decrypt of the
// canary in turn, every 30 seconds, so that each comes once a minute. While the
// vault refuses to encrypt, an encrypt takes the place of the GET.
type Prober struct {
	cfg    ProberConfig
	canary *canary // owned by Run

	born         time.Time
	beat         atomic.Int64 // when Run last began a round or a wait, in nanoseconds since born
	probed       [2]atomic.Int64
	deniedGET    atomic.Bool
	metadataNext time.Time // when a denied GET is tried again; owned by Run
	leftAlone    time.Time // until when the vault has asked Run to be left alone; owned by Run
}

// NewProber returns a prober that does nothing until Run.
func NewProber(cfg ProberConfig) *Prober {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Prober{cfg: cfg, born: time.Now()}
}

// Run probes at once and then until ctx ends. It returns nil.
func (p *Prober) Run(ctx context.Context) error {
	if p.cfg.Memory != nil {
		p.canary = p.cfg.Memory.canary()
	}
	last, failures := turnDecrypt, 0
	var err *keyvault.Error
	for first := true; ; first = false {
		p.tick()
		last = p.next(first || err != nil, last)
		err = p.probe(ctx, last)
		if last == turnDecrypt && err == nil && failures > 0 && p.cfg.Tracker.writeRefused() {
			// What was mended is likely to have been refused together.
			last = turnEncrypt
			err = p.probe(ctx, last)
		}
		if ctx.Err() != nil {
			p.save()
			return nil
		}
		p.save()
		if err != nil {
			failures++
		} else {
			failures = 0
		}
		p.tick()
		timer := time.NewTimer(p.pause(failures, err))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// A turn is what a round asks.
type turn int

const (
	turnDecrypt turn = iota
	turnGet
	turnEncrypt
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
	case p.metadataDue():
		return turnGet
	}
	return turnDecrypt
}

// pause is how long to wait after a probe. The jitter keeps the replicas of a
// control plane from asking at the same moment for ever.
func (p *Prober) pause(failures int, err *keyvault.Error) time.Duration {
	d := probePeriod
	switch {
	case err == nil && p.cfg.Tracker.writeRefused():
		d = refusedPeriod
	case err != nil && err.Remembered && (err.Reason == keyvault.Throttled || err.RetryAfter > 0):
		// The vault was not asked, and how long it asked to be left alone says
		// nothing about how much of that is left.
		if rest := time.Until(p.leftAlone); rest > 0 {
			d = min(rest, d)
		}
		return d + time.Duration(float64(d)*0.1*mathrand.Float64())
	case err != nil && (err.Reason == keyvault.Throttled || err.RetryAfter > 0):
		// Asked to be left alone. The bound keeps the prober inside what
		// Late tolerates.
		d = min(max(d, err.RetryAfter), 2*probePeriod)
		p.leftAlone = time.Now().Add(d)
	case failures == 1:
		d = probeRetry
	}
	return time.Duration(float64(d) * (0.9 + 0.2*mathrand.Float64()))
}

// probe makes one round and reports its failure, if it says anything about the key.
func (p *Prober) probe(ctx context.Context, t turn) *keyvault.Error {
	ctx = keyvault.Background(ctx)
	switch t {
	case turnGet:
		defer p.stamp(0)
		return p.look(ctx)
	case turnEncrypt:
		if err := p.encrypt(ctx); err != nil && !denied(err) {
			return err
		}
		return nil // or known before
	}
	defer p.stamp(1)
	return p.roundTrip(ctx)
}

// tick notes that Run gets on. It keeps a duration, because those are measured
// by a clock that nobody sets.
func (p *Prober) tick() { p.beat.Store(int64(time.Since(p.born))) }

func (p *Prober) stamp(i int) { p.probed[i].Store(time.Now().Unix()) }

// look gets the key's attributes.
func (p *Prober) look(ctx context.Context) *keyvault.Error {
	attrs, err := p.cfg.Vault.Get(ctx, p.cfg.Key)
	if e := p.report(ctx, keyvault.OpGet, err); e != nil {
		if !denied(e) {
			return e
		}
		if !p.deniedGET.Swap(true) {
			p.cfg.Logger.Warn("the identity may not get the key's attributes: that is optional, running without them", zap.String("reason", string(e.Reason)))
		}
		p.metadataNext = time.Now().Add(metadataRetry)
		return nil
	}
	if p.deniedGET.Swap(false) {
		p.cfg.Logger.Info("the identity may get the key's attributes again")
	}
	reason, text := judge(attrs)
	if reason == keyvault.Success {
		p.cfg.Tracker.writable()
		return nil
	}
	e := p.report(ctx, keyvault.OpGet, &keyvault.Error{Op: keyvault.OpGet, Key: p.cfg.Key, Reason: reason, Text: text})
	if reason.Kind() == keyvault.KindWriteOnly {
		return nil // told, and nothing that asking again soon would mend
	}
	return e
}

// judge says what attributes mean, by the vault's clock if it told it.
func judge(a keyvault.Attributes) (keyvault.Reason, string) {
	now := a.Date
	if now.IsZero() {
		now = time.Now()
	}
	switch {
	case !a.Enabled:
		return keyvault.KeyDisabled, "the key version is disabled: enable it"
	case !a.Expires.IsZero() && !now.Before(a.Expires):
		return keyvault.KeyExpired, "the key version expired at " + a.Expires.UTC().Format(time.RFC3339) + ": extend its validity"
	case now.Before(a.NotBefore):
		return keyvault.KeyNotYetValid, "the key version is valid only from " + a.NotBefore.UTC().Format(time.RFC3339) + " on"
	}
	return keyvault.Success, ""
}

func (p *Prober) metadataDue() bool {
	return !p.deniedGET.Load() || !time.Now().Before(p.metadataNext)
}

// roundTrip decrypts the canary, after making one if there is none.
func (p *Prober) roundTrip(ctx context.Context) *keyvault.Error {
	fresh := p.canary == nil
	if fresh {
		if err := p.encrypt(ctx); err != nil || p.canary == nil {
			return err
		}
	}
	plaintext, err := p.cfg.Vault.Decrypt(ctx, p.cfg.Key, p.canary.Ciphertext)
	if err == nil && p.canary.matches(plaintext) {
		p.cfg.Tracker.canary(time.Now(), nil)
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
		Op: keyvault.OpDecrypt, Key: p.cfg.Key, Reason: keyvault.Unknown,
		Text: "what the vault has just encrypted does not decrypt to the same bytes",
	}
	p.cfg.Tracker.canary(time.Now(), e)
	return e
}

func (p *Prober) encrypt(ctx context.Context) *keyvault.Error {
	plaintext := make([]byte, 32)
	rand.Read(plaintext)
	ciphertext, err := p.cfg.Vault.Encrypt(ctx, p.cfg.Key, plaintext)
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
		e = &keyvault.Error{Op: op, Key: p.cfg.Key, Reason: keyvault.Unknown, Text: "unexpected failure of the client", Err: err}
	}
	p.cfg.Tracker.Observe(keyvault.Outcome{Op: op, Key: p.cfg.Key, Err: e, Time: time.Now()})
	return e
}

func (p *Prober) save() {
	if p.cfg.Memory != nil {
		p.cfg.Memory.save(p.canary, p.cfg.Tracker.snapshot())
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
func (p *Prober) MetadataAccess() bool { return !p.deniedGET.Load() }

// LastGet and LastDecrypt are when the last probes ended; zero for never.
func (p *Prober) LastGet() time.Time     { return p.at(0) }
func (p *Prober) LastDecrypt() time.Time { return p.at(1) }

func (p *Prober) at(i int) time.Time {
	if s := p.probed[i].Load(); s != 0 {
		return time.Unix(s, 0)
	}
	return time.Time{}
}
