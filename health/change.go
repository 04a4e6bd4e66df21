package health

import (
	"time"

	"go.uber.org/zap"

	"azure-kms-plugin/keyvault"
)

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
		fields = append(fields, zap.String("reason", string(reason)), zap.String("text", f.err.Shown()), zap.Time("since", f.first))
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
	case phase == ReadOnly, phase == Degraded && f == &t.state.write:
		t.log.Error("key decrypts but refuses to encrypt: a restarted kube-apiserver cannot get a new seed", fields...)
	default:
		t.log.Warn("key cannot be used now", fields...)
	}
}
