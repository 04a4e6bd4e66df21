package health

import (
	"time"

	"azure-kms-plugin/keyvault"
)

// Graces are how long each kind of failure is borne before it counts as a
// loss. Zero means the default; a negative duration means at once.
type Graces struct {
	Outage   time.Duration // a fault: default 24h
	Denial   time.Duration // a refusal: default 10m
	KeyState time.Duration // the key is disabled, deleted or missing: default 15s
}

func (g Graces) of(c class) time.Duration {
	d, def := g.Outage, 24*time.Hour
	switch c {
	case classKeyState:
		d, def = g.KeyState, 15*time.Second
	case classRefusal:
		d, def = g.Denial, 10*time.Minute
	}
	if d == 0 {
		return def
	}
	return max(d, 0)
}

// A class is a kind of failure that can become a loss, the gravest first.
type class int

const (
	classKeyState class = iota
	classRefusal
	classCanary // the vault answers, but not with what was encrypted; borne like a fault
	classFault
	classes
)

// A failure is what is known of one class since the last success.
type failure struct {
	first time.Time
	err   *keyvault.Error // the latest
	// remembered: seen by an earlier process only. It keeps its grace running,
	// but what this process meets itself is what is shown.
	remembered bool
}

// state is the evidence about one key version, as a value: no clock, no lock,
// no I/O. The zero value knows nothing.
type state struct {
	// success is when a remote decrypt under the write version last succeeded.
	success time.Time
	// answered says that the vault has refused a write because of the key's
	// validity alone: proof that it is reachable, that we are let in and that
	// the key is there, though nothing has been decrypted yet.
	answered bool
	failed   [classes]failure
	// write is why the vault refuses to encrypt: what is said of the key's
	// validity, or a refusal of the permission. A decrypt says nothing about it.
	write failure
	// missed is a seed that was never opened here and could not be when somebody
	// asked; probed says that the canary could not be decrypted either. Both are
	// about the time since the last success.
	missed failure
	probed bool
	// settled is when every server of the vault must know the version. Until then a
	// 404 says nothing but that one does not. Zero: it is old enough, as far as is known.
	settled time.Time
}

// writeRefused reports whether the permission to encrypt is refused, as far as
// is known: only a try can tell that it is back.
func (s *state) writeRefused() bool { return s.write.err != nil && denied(s.write.err) }

// observe adds the outcome of an operation under the write version. It
// reports whether the outcome says anything about whether the key can be used.
func (s *state) observe(o keyvault.Outcome) bool {
	if o.Err == nil {
		switch o.Op {
		case keyvault.OpDecrypt, keyvault.OpUnwrap:
			s.decrypted(o.Time)
			return true
		case keyvault.OpEncrypt, keyvault.OpWrap:
			// Not proof that the key is enabled: it is disputed whether the
			// vault refuses to encrypt under a disabled one.
			s.write = failure{}
		}
		return false
	}
	metadata := o.Op == keyvault.OpGet || o.Op == keyvault.OpList
	switch o.Err.Reason.Kind() {
	case keyvault.KindKeyState:
		if o.Err.Reason == keyvault.KeyNotFound && o.Time.Before(s.settled) {
			s.fail(classFault, o)
			break
		}
		s.fail(classKeyState, o)
	case keyvault.KindRefusal:
		// Decrypt and encrypt permissions suffice, so a denied look at the
		// key's attributes says nothing about its use.
		if metadata && denied(o.Err) {
			return false
		}
		if encrypts(o.Op) && denied(o.Err) {
			s.write.note(o)
			if !s.success.IsZero() {
				break // the decrypts go on to speak for themselves
			}
		}
		s.fail(classRefusal, o)
	case keyvault.KindFault:
		s.fail(classFault, o)
	case keyvault.KindUnwritable:
		// Attributes tell nothing about our permissions.
		s.answered = s.answered || !metadata
		if !metadata || !s.writeRefused() {
			s.write.note(o)
		}
	default:
		return false
	}
	return true
}

// unknown notes why the version that writes could not be found out. Without it
// there is no key, whatever the identity may do with one. It takes the place of what
// was in the way before: no decrypt will end that.
func (s *state) unknown(o keyvault.Outcome) bool {
	var now class
	switch o.Err.Reason.Kind() {
	case keyvault.KindKeyState:
		now = classKeyState
	case keyvault.KindRefusal:
		now = classRefusal
	case keyvault.KindFault:
		now = classFault
	default:
		return false
	}
	for c := range classes {
		if c != now {
			s.failed[c] = failure{}
		}
	}
	s.fail(now, o)
	return true
}

// encrypts reports whether an operation writes.
func encrypts(op keyvault.Op) bool { return op == keyvault.OpEncrypt || op == keyvault.OpWrap }

// denied reports whether err says that the identity or the key does not allow
// the operation, as opposed to letting nobody in.
func denied(err *keyvault.Error) bool {
	return err.Reason == keyvault.AccessDenied || err.Reason == keyvault.OperationNotPermitted
}

// decrypted is the only thing that ends a loss or restarts a grace. A canary
// that came back wrong is cleared by a right one alone: see canary.
func (s *state) decrypted(at time.Time) {
	if at.Before(s.success) {
		return
	}
	s.success = at
	s.missed, s.probed = failure{}, false
	for c := range s.failed {
		if class(c) != classCanary {
			s.failed[c] = failure{}
		}
	}
}

// canary adds what came of a decrypted canary: nil when it was the plaintext
// that had been encrypted.
func (s *state) canary(at time.Time, err *keyvault.Error) {
	if err != nil {
		s.probed = true
		s.failed[classCanary].note(keyvault.Outcome{Err: err, Time: at})
		return
	}
	s.failed[classCanary] = failure{}
	s.decrypted(at)
}

// miss adds that a seed could not be opened, which this node never opened before: one
// that another kube-apiserver has just made, as a rule. The others may well serve it, so
// while the canary fails too, traffic has to go there.
func (s *state) miss(o keyvault.Outcome) {
	if !o.Time.Before(s.success) && away(o.Err) {
		s.missed.note(o)
	}
}

// unprobed adds that the canary could not be decrypted.
func (s *state) unprobed(o keyvault.Outcome) {
	if !o.Time.Before(s.success) && away(o.Err) {
		s.probed = true
	}
}

// away reports whether err says that the vault is out of reach for this node, rather than
// something about the key or the request.
func away(err *keyvault.Error) bool {
	return err.Reason.Kind() == keyvault.KindFault || err.Reason.Kind() == keyvault.KindRefusal
}

// fail adds a failure, unless a decrypt has succeeded since: answers of calls
// that ran side by side may be reported in any order.
func (s *state) fail(c class, o keyvault.Outcome) {
	if !o.Time.Before(s.success) {
		s.failed[c].note(o)
	}
}

func (f *failure) note(o keyvault.Outcome) {
	if f.err == nil {
		f.first = o.Time
	}
	f.err, f.remembered = o.Err, false
}
