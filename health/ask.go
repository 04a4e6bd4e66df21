package health

import (
	"context"
	"time"

	"azure-kms-plugin/keyvault"
)

// The prober decrypts twice a minute at most. What makes a decrypt worth more than
// that asks for one: a failure that only a decrypt can confirm or end.

// ask asks the prober for a decrypt.
func (t *Tracker) ask() {
	select {
	case t.asks <- struct{}{}:
	default:
	}
}

// answering says that a decrypt begins, for which nobody has to ask any more.
func (t *Tracker) answering() {
	select {
	case <-t.asks:
	default:
	}
}

// well reports whether there is no failure that a decrypt might end.
func (t *Tracker) well() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.failed == [classes]failure{}
}

// keyStateSince is when a key-state failure that stands was first seen; zero if
// there is none.
func (t *Tracker) keyStateSince() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.failed[classKeyState].first
}

// doubt asks for a decrypt when a look at the newest version has failed in a way
// that decrypts may fail too: the look itself says nothing about the version that
// writes. One that goes on being denied is no news. While a failure is known, decrypts
// come anyway.
func (p *Prober) doubt(err *keyvault.Error) {
	news := p.sight.refuse(denied(err))
	if (news || !denied(err)) && !wantsPause(err) && err.Reason.Kind() != keyvault.KindCaller && p.cfg.Tracker.well() {
		p.cfg.Tracker.ask()
	}
}

// wantsPause reports whether the vault has asked to be left alone.
func wantsPause(err *keyvault.Error) bool {
	return err.Reason == keyvault.Throttled || err.RetryAfter > 0
}

// rest waits for the next round, and reports whether that is to be a decrypt
// because one was asked for. Those come no faster than retries, whoever asks, and not
// before the vault may be asked.
func (p *Prober) rest(ctx context.Context, pause time.Duration, changed <-chan struct{}) (asked bool) {
	end := time.Now().Add(pause)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for asks := p.cfg.Tracker.asks; ; {
		select {
		case <-timer.C:
			return asked
		case <-asks:
			asked, asks = true, nil
			soon := max(time.Until(p.tried.Add(probeRetry)), time.Until(p.leftAlone), 0)
			timer.Reset(min(soon, time.Until(end)))
		case <-changed:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
