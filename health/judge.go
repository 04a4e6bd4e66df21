package health

import (
	"time"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// A Phase is what the evidence amounts to.
type Phase = status.Phase

// The phases.
const (
	Starting = status.Starting // nothing is known that would allow an "ok"
	Usable   = status.Usable   // the last evidence is a success
	Degraded = status.Degraded // a failure that is not, or not yet, a loss
	ReadOnly = status.ReadOnly // the key decrypts and refuses to encrypt
	CutOff   = status.CutOff   // what others write cannot be read here until a decrypt succeeds
	Lost     = status.Lost     // obeyed as a loss until a decrypt succeeds
)

// judge says what the evidence amounts to at a moment. The failure is the one
// to show: nil when there is none.
func (s *state) judge(now time.Time, g Graces) (Phase, *failure) {
	var worst *failure
	for c := range classes {
		f := &s.failed[c]
		if f.err == nil {
			continue
		}
		if now.Sub(f.first) >= g.of(c) {
			return Lost, f
		}
		if worst == nil || worst.remembered && !f.remembered {
			worst = f
		}
	}
	switch {
	case s.success.IsZero() && !s.answered:
		return Starting, worst
	case s.missed.err != nil && s.probed:
		return CutOff, &s.missed
	case worst != nil:
		return Degraded, worst
	case s.writeRefused():
		return Degraded, &s.write
	case s.write.err != nil:
		return ReadOnly, &s.write
	}
	return Usable, nil
}

// borne says as what a failure of this state is taken, and when it is obeyed as a loss;
// zero for never.
func (s *state) borne(f *failure, g Graces) (keyvault.Kind, time.Time) {
	kinds := [classes]keyvault.Kind{classKeyState: keyvault.KindKeyState, classRefusal: keyvault.KindRefusal, classCanary: keyvault.KindFault, classFault: keyvault.KindFault}
	for c := range classes {
		if f == &s.failed[c] || f == &s.missed && s.failed[c].err != nil {
			return kinds[c], s.failed[c].first.Add(g.of(c))
		}
	}
	return f.err.Reason.Kind(), time.Time{}
}
