package health

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"azure-kms-plugin/keyvault"
)

// Config configures a Tracker. Key is required.
type Config struct {
	// Key is the version that writes, or has none as long as none is known: see
	// Follow.
	Key keyvault.Ref
	// Graces are how long failures are borne.
	Graces Graces
	// ActivationDelay is how long a new version may be unknown to some of the vault's
	// servers; zero means what is usual for the kind of vault.
	ActivationDelay time.Duration
	// FirstWait bounds how long Ready waits for the first evidence after a
	// start; zero means 2.5 s, inside the 3 s that kube-apiserver allows.
	FirstWait time.Duration
	// Memory holds what the process before this one knew; nil for none.
	Memory *Memory
	// Logger gets one line for each change of phase or reason; nil for none.
	Logger *zap.Logger
}

// A Tracker holds the evidence about the write version and judges it.
type Tracker struct {
	graces Graces
	wait   time.Duration
	log    *zap.Logger

	memory *Memory
	seeds  *seeds
	delay  time.Duration
	told   chan struct{} // closed with the first evidence of this process
	asks   chan struct{} // holds one while a decrypt is worth making at once
	born   time.Time

	mu        sync.Mutex
	key       keyvault.Ref
	changed   chan struct{} // closed and replaced when key changes
	state     state
	isTold    bool
	waitUntil time.Time // when waiting for the first evidence ends; zero before the first call
	phase     Phase     // last logged, as are the two below
	reason    keyvault.Reason
	cause     keyvault.Cause
	failing   time.Time     // since when, as far as was logged; zero while all is well
	outage    time.Duration // of failures that are over, in this process
}

// NewTracker returns a tracker that begins with what cfg.Memory holds.
func NewTracker(cfg Config) *Tracker {
	t := &Tracker{
		key:     cfg.Key,
		graces:  cfg.Graces,
		wait:    cfg.FirstWait,
		log:     cfg.Logger,
		memory:  cfg.Memory,
		seeds:   &seeds{},
		delay:   cfg.ActivationDelay,
		born:    time.Now(),
		told:    make(chan struct{}),
		asks:    make(chan struct{}, 1),
		changed: make(chan struct{}),
		phase:   Starting,
	}
	if t.wait == 0 {
		t.wait = 2500 * time.Millisecond
	}
	if t.log == nil {
		t.log = zap.NewNop()
	}
	if t.delay == 0 {
		t.delay = keyvault.DefaultActivationDelay
		if cfg.Key.IsHSM() {
			t.delay = keyvault.DefaultHSMActivationDelay
		}
	}
	if t.memory != nil {
		t.seeds.load(t.memory.seedPrints())
	}
	t.state = t.remembered(cfg.Key)
	return t
}

// remembered is what the process before this one knew of a version.
func (t *Tracker) remembered(key keyvault.Ref) state {
	if t.memory == nil {
		return state{}
	}
	return t.memory.evidence(key, time.Now(), t.graces)
}

// Observe adds the outcome of an operation. Outcomes under other versions are
// ignored: the state of an old version alone never fails Status. So are those that
// name no version: what a look for the newest one means, the keyring says.
func (t *Tracker) Observe(o keyvault.Outcome) {
	if o.Key.Version != "" {
		t.update(o.Key, func(s *state) bool {
			was := s.failed[classKeyState].err != nil
			counts := s.observe(o)
			is := s.failed[classKeyState].err != nil
			if is && (!was || o.Err == nil && encrypts(o.Op)) {
				t.ask() // only a decrypt can tell that the key is back
			}
			return counts
		})
	}
}

// unknown says why the version that writes could not be found out.
func (t *Tracker) unknown(err *keyvault.Error) {
	o := keyvault.Outcome{Op: keyvault.OpGet, Key: err.Key.WithVersion(""), Err: err, Time: time.Now()}
	t.update(o.Key, func(s *state) bool { return s.unknown(o) })
}

// Follow makes another version the one that writes. What was known of the one
// before says nothing about it; proven is when a decrypt under it has succeeded,
// zero for never, and settled when a 404 of it is to be believed.
func (t *Tracker) Follow(key keyvault.Ref, proven, settled time.Time) {
	remembered := t.remembered(key)
	t.mu.Lock()
	same := key.SameVersion(t.key)
	if !same {
		t.key, t.state = key, remembered
		t.state.settled = settled
		close(t.changed)
		t.changed = make(chan struct{})
	}
	t.mu.Unlock()
	if !same && !proven.IsZero() {
		t.update(key, func(s *state) bool { s.decrypted(proven); return true })
	}
}

// Key is the version that writes; changed is closed when it is another one.
func (t *Tracker) Key() (key keyvault.Ref, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.key, t.changed
}

func (t *Tracker) canary(key keyvault.Ref, at time.Time, err *keyvault.Error) {
	t.update(key, func(s *state) bool { s.canary(at, err); return true })
}

// created says when a version was made, by this machine's clock.
func (t *Tracker) created(key keyvault.Ref, at time.Time) {
	t.update(key, func(s *state) bool { s.settled = at.Add(t.delay); return false })
}

// writable says that the key's attributes allow it to encrypt. They do not know
// whether we may.
func (t *Tracker) writable(key keyvault.Ref) {
	t.update(key, func(s *state) bool {
		if !s.writeRefused() {
			s.write = failure{}
		}
		return false
	})
}

func (t *Tracker) writeRefused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.writeRefused()
}

// update changes the state if it is that of key. change reports whether it was
// told anything about whether the key can be used.
func (t *Tracker) update(key keyvault.Ref, change func(*state) bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := key.SameVersion(t.key) && change(&t.state)
	phase, f := t.state.judge(now, t.graces)
	if counts && !t.isTold {
		t.isTold = true
		close(t.told)
	}
	t.note(phase, f)
}
