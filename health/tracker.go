package health

import (
	"context"
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

// note logs a change. The caller holds mu.
func (t *Tracker) note(phase Phase, f *failure) {
	var reason keyvault.Reason
	var cause keyvault.Cause
	if f != nil {
		reason, cause = f.err.Reason, f.err.Cause
	}
	// A new cause is news to whoever has just mended the one before.
	if phase == t.phase && reason == t.reason && cause == t.cause {
		return
	}
	if phase == Starting && f == nil {
		return // a version of which nothing is known yet is no failure
	}
	t.phase, t.reason, t.cause = phase, reason, cause
	fields := []zap.Field{zap.String("phase", string(phase))}
	if t.key.Version != "" {
		fields = append(fields, zap.String("version", t.key.Version))
	}
	switch {
	case f != nil:
		fields = append(fields, zap.String("reason", string(reason)), zap.String("text", f.err.Text), zap.Time("since", f.first))
		if t.failing.IsZero() || f.first.Before(t.failing) {
			t.failing = f.first
		}
	case !t.failing.IsZero():
		fields = append(fields, zap.Duration("after", time.Since(t.failing).Round(time.Millisecond)))
		t.outage += time.Since(latest(t.failing, t.born))
		t.failing = time.Time{}
	}
	switch {
	case phase == Usable:
		t.log.Info("key is usable", fields...)
	case phase == Lost:
		t.log.Error("key is lost: Status fails until a decrypt succeeds", fields...)
	case phase == CutOff:
		t.log.Error("this node is cut off: Status fails until a decrypt succeeds, so that other nodes take the traffic", fields...)
	case phase == WriteOnly, phase == Degraded && f == &t.state.write:
		t.log.Error("key decrypts but refuses to encrypt: a restarted kube-apiserver cannot get a new seed", fields...)
	default:
		t.log.Warn("key cannot be used now", fields...)
	}
}

// Ready reports whether Status may say "ok". Its error is a [*keyvault.Error].
// It answers from memory; only while this process has no evidence and the one
// before it left none that allows an "ok" does it wait for the first, no
// longer than FirstWait after the first call ever.
func (t *Tracker) Ready(ctx context.Context) error {
	if err, known := t.ready(time.Now()); known {
		return err
	}
	t.mu.Lock()
	if t.waitUntil.IsZero() {
		t.waitUntil = time.Now().Add(t.wait)
	}
	left := time.Until(t.waitUntil)
	t.mu.Unlock()
	if left > 0 {
		t.await(ctx, left)
	}
	err, _ := t.ready(time.Now())
	return err
}

func (t *Tracker) await(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-t.told:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (t *Tracker) ready(now time.Time) (err error, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	phase, f := t.state.judge(now, t.graces)
	t.note(phase, f)
	switch {
	case phase == CutOff:
		return f.err, true
	case phase == Lost, phase == Starting && f != nil:
		return f.err, t.isTold
	case phase == Starting:
		return silence(t.key), t.isTold
	}
	return nil, true
}

// silence is the error for a key of which nothing is known yet.
func silence(key keyvault.Ref) *keyvault.Error {
	return &keyvault.Error{
		Op:     keyvault.OpDecrypt,
		Key:    key,
		Reason: keyvault.Unreachable,
		Cause:  keyvault.CauseTimeout,
		Text:   key.Where() + ": the first probe has not been answered yet",
	}
}

// Usable reports whether the key can be used now, which is stricter than
// Ready: a failure that Ready still bears is returned, and so is a key that only
// decrypts. It waits for the first evidence as long as ctx allows.
func (t *Tracker) Usable(ctx context.Context) error {
	select {
	case <-t.told:
	default:
		if v := t.View(); v.Phase == Starting && v.Err == nil {
			select {
			case <-t.told:
			case <-ctx.Done():
			}
		}
	}
	switch v := t.View(); {
	case v.Phase == Usable:
		return nil
	case v.Err != nil:
		return v.Err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return silence(t.key)
}

// A View is the state at a moment.
type View struct {
	Key         keyvault.Ref // the version that it is about; without one while none is known
	Phase       Phase
	Err         *keyvault.Error // what to show; nil when there is nothing
	Kind        keyvault.Kind   // how Err is taken, which for a 404 depends on the version's age
	WriteAlone  bool            // Err keeps from encrypting only
	Since       time.Time       // when Err was first seen since the last success
	LossAt      time.Time       // when Err is obeyed as a loss; zero for never
	LastSuccess time.Time       // of a remote decrypt under the write version; zero for never
	Outage      time.Duration   // in which the last evidence was a failure, since the start
}

// Answers reports whether Status says "ok".
func (v View) Answers() bool { return v.Phase != Starting && v.Phase != Lost && v.Phase != CutOff }

// View returns what is known now.
func (t *Tracker) View() View {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	phase, f := t.state.judge(now, t.graces)
	t.note(phase, f)
	v := View{Key: t.key, Phase: phase, LastSuccess: t.state.success, Outage: t.outage}
	if f != nil {
		v.Err, v.Since = f.err, f.first
		v.Kind, v.LossAt = t.state.borne(f, t.graces)
		v.WriteAlone = f == &t.state.write
	}
	if !t.failing.IsZero() {
		v.Outage += now.Sub(latest(t.failing, t.born))
	}
	return v
}

// snapshot returns a copy of the evidence and the version it is about, to be kept.
func (t *Tracker) snapshot() (keyvault.Ref, state) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.key, t.state
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
