package health_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

var key = keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: "0123456789abcdef0123456789abcdef"}

// outcome of an operation under the write version; an empty reason is success.
func outcome(op keyvault.Op, reason keyvault.Reason) keyvault.Outcome {
	o := keyvault.Outcome{Op: op, Key: key, Time: time.Now()}
	if reason != "" {
		o.Err = &keyvault.Error{Op: op, Key: key, Reason: reason, Text: "seen " + string(reason)}
	}
	return o
}

func reasonOf(t *testing.T, err error) keyvault.Reason {
	t.Helper()
	if err == nil {
		return keyvault.Success
	}
	var e *keyvault.Error
	require.ErrorAs(t, err, &e)
	return e.Reason
}

// A step waits, observes what is given, and says what Ready and Phase must be.
type step struct {
	wait   time.Duration
	op     keyvault.Op
	reason keyvault.Reason // with op: what the operation ended with, empty for success
	ready  keyvault.Reason // Success for ok
	phase  health.Phase
}

func TestTracker(t *testing.T) {
	const (
		decrypt = keyvault.OpDecrypt
		encrypt = keyvault.OpEncrypt
		get     = keyvault.OpGet
		ok      = keyvault.Success
	)
	usable := step{op: decrypt, ready: ok, phase: health.Usable}
	for _, tc := range []struct {
		name   string
		graces health.Graces
		steps  []step
	}{
		{"a decrypt makes it usable, an encrypt does not", health.Graces{}, []step{
			{op: encrypt, ready: keyvault.Unreachable, phase: health.Starting},
			usable,
		}},
		{"unwrap stands for decrypt", health.Graces{}, []step{
			{op: keyvault.OpUnwrap, ready: ok, phase: health.Usable},
		}},
		{"a fault before the first success is told", health.Graces{}, []step{
			{op: decrypt, reason: keyvault.Throttled, ready: keyvault.Throttled, phase: health.Starting},
			usable,
		}},
		{"a fault is a loss after a day, not before", health.Graces{}, []step{
			usable,
			{wait: time.Minute, op: decrypt, reason: keyvault.Unreachable, ready: ok, phase: health.Degraded},
			{wait: 24*time.Hour - time.Second, ready: ok, phase: health.Degraded},
			{wait: time.Second, ready: keyvault.Unreachable, phase: health.Lost},
			usable,
		}},
		{"a refusal is a loss after ten minutes, whatever faults come in between", health.Graces{}, []step{
			usable,
			{wait: time.Minute, op: decrypt, reason: keyvault.AccessDenied, ready: ok, phase: health.Degraded},
			{wait: 5 * time.Minute, op: decrypt, reason: keyvault.Unreachable, ready: ok, phase: health.Degraded},
			{wait: 5*time.Minute - time.Second, op: encrypt, ready: ok, phase: health.Degraded},
			{wait: time.Second, ready: keyvault.AccessDenied, phase: health.Lost},
			{wait: time.Hour, op: decrypt, reason: keyvault.Unreachable, ready: keyvault.AccessDenied, phase: health.Lost},
			usable,
		}},
		{"a success restarts the grace", health.Graces{}, []step{
			usable,
			{wait: time.Minute, op: decrypt, reason: keyvault.NetworkDenied, ready: ok, phase: health.Degraded},
			{wait: 9 * time.Minute, op: decrypt, ready: ok, phase: health.Usable},
			{wait: time.Minute, op: decrypt, reason: keyvault.NetworkDenied, ready: ok, phase: health.Degraded},
			{wait: 9 * time.Minute, ready: ok, phase: health.Degraded},
		}},
		{"a disabled key is a loss after 15 s, though the network fails in between", health.Graces{}, []step{
			usable,
			{wait: time.Minute, op: decrypt, reason: keyvault.KeyDisabled, ready: ok, phase: health.Degraded},
			{wait: 5 * time.Second, op: decrypt, reason: keyvault.Unreachable, ready: ok, phase: health.Degraded},
			{wait: 10 * time.Second, ready: keyvault.KeyDisabled, phase: health.Lost},
			{wait: time.Hour, op: encrypt, ready: keyvault.KeyDisabled, phase: health.Lost},
			usable,
		}},
		{"the latest key state is the one told", health.Graces{}, []step{
			usable,
			{wait: time.Minute, op: decrypt, reason: keyvault.KeyDisabled, ready: ok, phase: health.Degraded},
			{wait: time.Minute, op: get, reason: keyvault.KeyDeleted, ready: keyvault.KeyDeleted, phase: health.Lost},
		}},
		{"one stray key state is cleared by a decrypt", health.Graces{}, []step{
			usable,
			{wait: time.Minute, op: get, reason: keyvault.KeyNotFound, ready: ok, phase: health.Degraded},
			{wait: 14 * time.Second, op: decrypt, ready: ok, phase: health.Usable},
			{wait: time.Hour, ready: ok, phase: health.Usable},
		}},
		{"a key that only decrypts is never a loss", health.Graces{}, []step{
			usable,
			{wait: time.Minute, op: encrypt, reason: keyvault.KeyExpired, ready: ok, phase: health.ReadOnly},
			{wait: 1000 * time.Hour, op: decrypt, ready: ok, phase: health.ReadOnly},
			{op: encrypt, ready: ok, phase: health.Usable},
		}},
		{"a key that only decrypts is known to be there", health.Graces{}, []step{
			{op: encrypt, reason: keyvault.KeyNotYetValid, ready: ok, phase: health.ReadOnly},
			{wait: time.Minute, op: encrypt, reason: keyvault.Unreachable, ready: ok, phase: health.Degraded},
		}},
		{"a refused encrypt is no loss, and only an encrypt clears it", health.Graces{}, []step{
			usable,
			{wait: time.Minute, op: encrypt, reason: keyvault.AccessDenied, ready: ok, phase: health.Degraded},
			{wait: time.Minute, op: decrypt, ready: ok, phase: health.Degraded},
			{wait: 1000 * time.Hour, ready: ok, phase: health.Degraded},
			{op: keyvault.OpWrap, ready: ok, phase: health.Usable},
		}},
		{"a refused encrypt stands for decrypt while none has succeeded", health.Graces{}, []step{
			{op: encrypt, reason: keyvault.AccessDenied, ready: keyvault.AccessDenied, phase: health.Starting},
			{wait: 10 * time.Minute, ready: keyvault.AccessDenied, phase: health.Lost},
			{op: decrypt, ready: ok, phase: health.Degraded},
			{op: encrypt, ready: ok, phase: health.Usable},
		}},
		{"a refused decrypt is the graver one", health.Graces{}, []step{
			usable,
			{op: encrypt, reason: keyvault.OperationNotPermitted, ready: ok, phase: health.Degraded},
			{op: decrypt, reason: keyvault.AccessDenied, ready: ok, phase: health.Degraded},
			{wait: 10 * time.Minute, ready: keyvault.AccessDenied, phase: health.Lost},
			{op: decrypt, ready: ok, phase: health.Degraded},
		}},
		{"a caller's bad data says nothing", health.Graces{}, []step{
			usable,
			{wait: time.Minute, op: decrypt, reason: keyvault.BadCiphertext, ready: ok, phase: health.Usable},
			{op: decrypt, reason: keyvault.Canceled, ready: ok, phase: health.Usable},
			{wait: 100 * time.Hour, ready: ok, phase: health.Usable},
		}},
		{"a denied GET says nothing", health.Graces{}, []step{
			usable,
			{op: get, reason: keyvault.AccessDenied, ready: ok, phase: health.Usable},
			{wait: 100 * time.Hour, ready: ok, phase: health.Usable},
		}},
		{"without graces the first failure is a loss", health.Graces{Outage: -1, Denial: -1, KeyState: -1}, []step{
			usable,
			{wait: time.Second, op: decrypt, reason: keyvault.Unreachable, ready: keyvault.Unreachable, phase: health.Lost},
			usable,
			{wait: time.Second, op: decrypt, reason: keyvault.CredentialsRefused, ready: keyvault.CredentialsRefused, phase: health.Lost},
			usable,
			{wait: time.Second, op: decrypt, reason: keyvault.KeyDeleted, ready: keyvault.KeyDeleted, phase: health.Lost},
			usable,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := health.NewTracker(health.Config{Key: key, Graces: tc.graces})
				for i, s := range tc.steps {
					time.Sleep(s.wait)
					if s.op != "" {
						tr.Observe(outcome(s.op, s.reason))
					}
					require.Equal(t, s.ready, reasonOf(t, tr.Ready(t.Context())), "step %d", i)
					require.Equal(t, s.phase, tr.View().Phase, "step %d", i)
				}
			})
		})
	}
}

func TestTracker_OtherVersions(t *testing.T) {
	tr := health.NewTracker(health.Config{Key: key})
	tr.Observe(outcome(keyvault.OpDecrypt, ""))
	old := outcome(keyvault.OpDecrypt, keyvault.KeyDisabled)
	old.Key = key.WithVersion("ffffffffffffffffffffffffffffffff")
	tr.Observe(old)
	require.Equal(t, health.Usable, tr.View().Phase)
}

// Calls run side by side, so a failure may be reported after a success that is
// younger.
// Whoever has mended one cause must see the next one, though the reason is the same.
func TestTracker_LogsEachCauseOnce(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	tracker := health.NewTracker(health.Config{Key: key, Logger: zap.New(core)})
	for _, cause := range []keyvault.Cause{keyvault.CauseProxy, keyvault.CauseProxy, keyvault.CauseTLS, keyvault.CauseTLS} {
		o := outcome(keyvault.OpDecrypt, keyvault.Unreachable)
		o.Err.Cause = cause
		tracker.Observe(o)
	}
	require.Len(t, logs.FilterMessage("key cannot be used now").All(), 2)
}

func TestTracker_LateReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := health.NewTracker(health.Config{Key: key})
		failure := outcome(keyvault.OpDecrypt, keyvault.KeyDisabled)
		time.Sleep(time.Second)
		tr.Observe(outcome(keyvault.OpDecrypt, ""))
		tr.Observe(failure)
		time.Sleep(time.Minute)
		require.Equal(t, health.Usable, tr.View().Phase)
	})
}

func TestTracker_FirstAnswer(t *testing.T) {
	t.Run("comes with the first evidence", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tr := health.NewTracker(health.Config{Key: key})
			go func() {
				time.Sleep(time.Second)
				tr.Observe(outcome(keyvault.OpDecrypt, ""))
			}()
			start := time.Now()
			require.NoError(t, tr.Ready(t.Context()))
			require.Equal(t, time.Second, time.Since(start))
		})
	})
	t.Run("waits 2.5 s once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tr := health.NewTracker(health.Config{Key: key})
			start := time.Now()
			go func() {
				time.Sleep(time.Second)
				require.Error(t, tr.Ready(t.Context()))
				require.Equal(t, 2500*time.Millisecond, time.Since(start), "a caller that comes later ends with the first")
			}()
			err := tr.Ready(t.Context())
			require.Equal(t, 2500*time.Millisecond, time.Since(start))
			require.Equal(t, keyvault.KindFault, reasonOf(t, err).Kind(), "it must become Unavailable")
			synctest.Wait()
			start = time.Now()
			require.Error(t, tr.Ready(t.Context()))
			require.Zero(t, time.Since(start))
		})
	})
	t.Run("does not outlive its caller", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tr := health.NewTracker(health.Config{Key: key})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			require.Error(t, tr.Ready(ctx))
			require.Equal(t, time.Second, time.Since(start))
		})
	})
	t.Run("names the first failure at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tr := health.NewTracker(health.Config{Key: key})
			go func() {
				time.Sleep(100 * time.Millisecond)
				tr.Observe(outcome(keyvault.OpEncrypt, keyvault.AccessDenied))
			}()
			start := time.Now()
			require.Equal(t, keyvault.AccessDenied, reasonOf(t, tr.Ready(t.Context())))
			require.Equal(t, 100*time.Millisecond, time.Since(start))
		})
	})
}

func TestTracker_Usable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := health.NewTracker(health.Config{Key: key})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		go func() {
			time.Sleep(10 * time.Second)
			tr.Observe(outcome(keyvault.OpDecrypt, ""))
		}()
		require.NoError(t, tr.Usable(ctx), "waits for the first probe as long as its caller does")

		tr.Observe(outcome(keyvault.OpDecrypt, keyvault.Throttled))
		require.NoError(t, tr.Ready(ctx), "borne")
		require.Equal(t, keyvault.Throttled, reasonOf(t, tr.Usable(ctx)), "but not usable now")

		tr.Observe(outcome(keyvault.OpDecrypt, ""))
		tr.Observe(outcome(keyvault.OpEncrypt, keyvault.KeyExpired))
		require.NoError(t, tr.Ready(ctx), "reads and running writers are safe")
		require.Equal(t, keyvault.KeyExpired, reasonOf(t, tr.Usable(ctx)), "but no new seed can be had")
	})
}
