package keyvault

import (
	"strings"
	"sync"
	"time"
)

const (
	// faultsToOpen is how many faults in a row open the breaker of a host: one
	// stray 500 must not.
	faultsToOpen = 3
	// openFor is the pause of an open breaker, and so the pace at which a vault
	// in trouble is asked.
	openFor = time.Second
	// maxThrottlePause ends the doubling pause of a vault that throttles without
	// saying for how long. Source: Key Vault throttling guidance (1, 2, 4, 8, 16 s).
	maxThrottlePause = 16 * time.Second
	// maxRetryAfter bounds what an answer may impose.
	maxRetryAfter = time.Minute
	// maxSwitches bounds the memory of the breaker.
	maxSwitches = 1024
)

// A breaker answers from memory while asking again would be pointless. It has
// one switch per host, for faults of the whole vault, and one per operation and
// key version, for what the vault says about that one: a denied GET or a
// disabled old version must not stop the write version.
type breaker struct {
	mu       sync.Mutex
	switches map[string]*breakerSwitch // guarded by mu, as are the switches
}

type breakerSwitch struct {
	faults int       // in a row
	until  time.Time // open before this moment
	pause  time.Duration
	asked  bool   // the vault itself has asked for the pause
	trial  bool   // one call is under way to see whether it is over
	last   *Error // nil while closed
}

func newBreaker() *breaker { return &breaker{switches: map[string]*breakerSwitch{}} }

func hostSwitch(r Ref) string { return strings.ToLower(r.Host) }

func keySwitch(op Op, r Ref) string {
	return string(op) + " " + strings.ToLower(r.Host+"/"+r.Name+"/"+r.Version)
}

// A pass is the leave to make one call.
type pass struct {
	b      *breaker
	op     Op
	ref    Ref
	trials []*breakerSwitch
}

// trial reports whether the call is to find out if a fault is over, so that it
// must be a single exchange.
func (p *pass) trial() bool { return len(p.trials) > 0 }

// enter asks for leave to call. Without it, the error is a copy of the one that
// keeps the breaker open. peek only looks, and takes no trial.
func (b *breaker) enter(op Op, ref Ref, background, peek bool) (*pass, *Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	p := &pass{b: b, op: op, ref: ref}
	for _, key := range []string{hostSwitch(ref), keySwitch(op, ref)} {
		s := b.switches[key]
		if s == nil || s.last == nil {
			continue
		}
		if background && !(s.asked && now.Before(s.until)) {
			continue
		}
		if now.Before(s.until) || s.trial {
			p.release()
			return nil, remembered(s.last, op, ref)
		}
		if !peek {
			s.trial = true
			p.trials = append(p.trials, s)
		}
	}
	return p, nil
}

// remembered is what a caller gets who is not let through.
func remembered(last *Error, op Op, ref Ref) *Error {
	e := last.at(op, ref)
	e.Remembered = true
	return e
}

// release gives the trials back. The caller holds b.mu.
func (p *pass) release() {
	for _, s := range p.trials {
		s.trial = false
	}
	p.trials = nil
}

// done reports the end of the call. A call that its caller gave up says nothing.
func (p *pass) done(failure *Error) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.release()
	if failure != nil && failure.Reason == Canceled {
		return
	}
	now := time.Now()
	host, key := hostSwitch(p.ref), keySwitch(p.op, p.ref)
	if failure == nil || failure.Reason == BadCiphertext || failure.Reason == BadRequest {
		p.b.shut(host, now)
		p.b.shut(key, now)
		return
	}
	switch failure.Reason {
	case Unreachable, Throttled, CredentialsUnavailable:
		s := p.b.at(host, now)
		s.faults++
		s.open(failure, now, faultsToOpen)
	case VaultNotFound, CredentialsRefused, NetworkDenied:
		s := p.b.at(host, now)
		s.faults++
		s.open(failure, now, 1)
	default:
		// The vault has answered, about this key and operation.
		p.b.shut(host, now)
		s := p.b.at(key, now)
		s.faults++
		s.open(failure, now, 1)
	}
}

// open opens the switch after the given number of faults in a row.
func (s *breakerSwitch) open(failure *Error, now time.Time, after int) {
	already := s.last != nil // this was a trial, or an answer that came late
	switch {
	case failure.Reason == Throttled && failure.RetryAfter > 0:
		s.pause, s.asked = min(failure.RetryAfter, maxRetryAfter), true
	case s.faults < after && !already:
		return
	case failure.Reason == Throttled && already && !s.asked:
		if now.Before(s.until) {
			s.last = failure
			return // a call that began before it opened
		}
		s.pause = min(2*s.pause, maxThrottlePause)
	default:
		s.pause, s.asked = openFor, false
	}
	s.last = failure
	if until := now.Add(s.pause); until.After(s.until) {
		s.until = until
	}
}

// shut closes a switch, but for a pause that the vault has asked for: calls that
// began before it may still end well.
func (b *breaker) shut(key string, now time.Time) {
	if s := b.switches[key]; s != nil && !(s.asked && now.Before(s.until)) {
		delete(b.switches, key)
	}
}

// at finds or makes a switch.
func (b *breaker) at(key string, now time.Time) *breakerSwitch {
	s := b.switches[key]
	if s == nil {
		if len(b.switches) >= maxSwitches {
			for k, old := range b.switches {
				if !old.trial && !now.Before(old.until) {
					delete(b.switches, k)
				}
			}
		}
		s = &breakerSwitch{}
		b.switches[key] = s
	}
	return s
}
