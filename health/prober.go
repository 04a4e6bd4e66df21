package health

import (
	"context"
	"fmt"
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
	p.sight.refuse(false)
	p.sight.see(time.Now(), a, true)
	p.cfg.Uses.See(a)
	if key, _ := p.cfg.Tracker.Key(); a.Key.SameVersion(key) {
		p.stamp(0)
		p.examine(a)
	}
}

// tick notes that Run gets on. It keeps a duration, because those are measured
// by a clock that nobody sets.
func (p *Prober) tick() { p.beat.Store(int64(time.Since(p.born))) }

func (p *Prober) stamp(i int) { p.probed[i].Store(time.Now().Unix()) }

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
