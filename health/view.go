package health

import (
	"time"

	"azure-kms-plugin/keyvault"
)

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
