package health

import (
	"context"
	"time"

	"azure-kms-plugin/keyvault"
)

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
	case phase == Lost, phase == CutOff, phase == Starting && f != nil:
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
