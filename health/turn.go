package health

import (
	mathrand "math/rand/v2"
	"time"

	"azure-kms-plugin/keyvault"
)

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
