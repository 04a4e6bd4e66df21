package keyvault

import (
	"errors"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	// faultsToOpen is how many faults in a row open a switch: one stray 500
	// must not.
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
	// slowTrial is how long a call without an answer may have taken for the next trial to be
	// worth waiting for.
	slowTrial = 500 * time.Millisecond
)

// A breaker answers from memory while asking again would be pointless. It has
// one switch per host, for faults of the whole vault, and one per operation and
// key version, for what the vault says about that one: a denied GET or a
// disabled old version must not stop the write version. Nor must a version that
// the vault fails on: a 5xx or a silence is the host's only when two switches in
// turn have met it, and even then only a key that has just met one itself waits.
type breaker struct {
	mu       sync.Mutex
	switches map[string]*breakerSwitch // guarded by mu, as are the switches
}

type breakerSwitch struct {
	faults int       // in a row
	met    time.Time // when the last of them was
	until  time.Time // open before this moment
	pause  time.Duration
	asked  bool   // the vault itself has asked for the pause
	trial  bool   // one call is under way to see whether it is over
	last   *Error // nil while closed
	slow   bool   // last was a long silence

	// Of a host's switch alone:
	first   string // the first key switch to meet a server fault
	several bool   // another one has met one too
	shared  bool   // open for faults that may be of some keys only
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
	began  time.Time
}

// trial reports whether the call is to find out if a fault is over, so that it
// must be a single exchange.
func (p *pass) trial() bool { return len(p.trials) > 0 }

// slow returns what a caller gets who does not wait for a trial: nil for one that is
// likely to be quick, or is none.
func (p *pass) slow() *Error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	for _, s := range p.trials {
		if s.slow && s.last != nil {
			return remembered(s.last, p.op, p.ref)
		}
	}
	return nil
}

// enter asks for leave to call. Without it, the error is a copy of the one that
// keeps the breaker open. peek only looks, and takes no trial.
func (b *breaker) enter(op Op, ref Ref, background, peek bool) (*pass, *Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	p := &pass{b: b, op: op, ref: ref, began: now}
	for _, key := range []string{hostSwitch(ref), keySwitch(op, ref)} {
		s := b.switches[key]
		if s == nil || s.last == nil {
			continue
		}
		asked := s.asked && now.Before(s.until)
		if background && !asked {
			continue
		}
		// Whoever fails most wins the trials, so a healthy version needs none.
		if s.shared && !asked && b.switches[keySwitch(op, ref)].mayPass(now) {
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

// mayPass reports whether a key's own switch decides for it while that of its
// host is open for the faults of several keys: unless it has just met one itself
// and is not open for it.
func (s *breakerSwitch) mayPass(now time.Time) bool {
	return s == nil || s.last != nil || !now.Before(s.met.Add(openFor))
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
	defer func() {
		for _, s := range []*breakerSwitch{p.b.switches[host], p.b.switches[key]} {
			if s != nil && failure != nil && s.last == failure {
				s.slow = failure.Status == 0 && now.Sub(p.began) > slowTrial
			}
		}
	}()
	if failure == nil || failure.Reason == BadCiphertext || failure.Reason == BadRequest {
		p.b.shut(host, now)
		p.b.shut(key, now)
		return
	}
	switch failure.Reason {
	case Unreachable:
		if afterConnect(failure) {
			p.b.at(key, now).count(failure, now, faultsToOpen)
			p.b.at(host, now).countFrom(key, failure, now)
			return
		}
		fallthrough
	case Throttled, CredentialsUnavailable:
		s := p.b.at(host, now)
		s.shared = false
		s.count(failure, now, faultsToOpen)
	case VaultNotFound, CredentialsRefused, NetworkDenied:
		s := p.b.at(host, now)
		s.shared = false
		s.count(failure, now, 1)
	case Unknown:
		p.b.shut(host, now)
		p.b.at(key, now).count(failure, now, faultsToOpen)
	default:
		// The vault has answered, about this key and operation.
		p.b.shut(host, now)
		p.b.at(key, now).count(failure, now, 1)
	}
}

// afterConnect reports whether a fault may be that of one key: the vault was
// reached, but answers with an error or not at all.
func afterConnect(failure *Error) bool {
	if op, ok := errors.AsType[*net.OpError](failure.Err); ok && op.Op == "dial" {
		return false
	}
	return failure.Cause == CauseServer || failure.Cause == CauseTimeout
}

// count adds a fault, and opens the switch when it is the last of so many.
func (s *breakerSwitch) count(failure *Error, now time.Time, after int) {
	s.faults, s.met = s.faults+1, now
	s.open(failure, now, after)
}

// countFrom adds a fault of a key to its host's switch.
func (s *breakerSwitch) countFrom(key string, failure *Error, now time.Time) {
	if s.first == "" {
		s.first = key
	}
	s.several = s.several || s.first != key
	s.faults++
	if (s.several || s.last != nil) && !(s.asked && now.Before(s.until)) {
		s.shared = true
		s.open(failure, now, faultsToOpen)
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
	case s.asked && now.Before(s.until):
		return // a call that began before the pause cannot end it
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
