package health_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

// follow polls the newest version once a minute beside a prober, until the test ends.
// What a poll meets is what the vault does to a GET.
func follow(t *testing.T, v *fakeVault, r *rig) {
	go func() {
		tick := time.NewTicker(time.Minute)
		defer tick.Stop()
		for {
			_, err := v.Get(t.Context(), unversioned)
			e, _ := err.(*keyvault.Error)
			r.prober.Polled(keyvault.Attributes{Key: key, Enabled: true}, e)
			select {
			case <-tick.C:
			case <-t.Context().Done():
				return
			}
		}
	}()
}

// While polls show the version that writes, they and the decrypts take turns, so that
// there is an answer of the vault every half minute, at the price of two a minute.
func TestProber_SpreadsEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(10 * time.Second)
		follow(t, v, r)
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		require.Less(t, v.total(), 3000)
		for i := 10; i < len(v.times); i++ {
			require.Less(t, v.times[i].Sub(v.times[i-1]), 40*time.Second)
		}
	})
}

// A poll that fails by a fault is no evidence about the version that writes, but the
// decrypt that it brings at once is.
func TestProber_FailedPollBringsDecrypt(t *testing.T) {
	for reason, want := range map[keyvault.Reason]bool{
		keyvault.Unreachable: true, keyvault.CredentialsUnavailable: true, keyvault.NetworkDenied: true, keyvault.KeyNotFound: true,
		keyvault.AccessDenied: true, keyvault.OperationNotPermitted: true, keyvault.Throttled: false, keyvault.Canceled: false,
	} {
		synctest.Test(t, func(t *testing.T) {
			v := &fakeVault{}
			r := start(t, v, health.Graces{}, "")
			time.Sleep(10 * time.Second)
			v.set(func(v *fakeVault) { v.fail = always(keyvault.Unreachable) })
			r.prober.Polled(keyvault.Attributes{}, &keyvault.Error{Op: keyvault.OpGet, Key: unversioned, Reason: reason})
			synctest.Wait()
			if !want {
				require.Equal(t, 1, v.count(keyvault.OpDecrypt), "%s", reason)
				return
			}
			require.Equal(t, health.Degraded, r.tracker.View().Phase, "%s", reason)
			require.Equal(t, keyvault.Unreachable, r.tracker.View().Err.Reason)
		})
	}
}

// What takes the permission to look may take the others: one decrypt tells, and a look that goes on
// being denied brings no more.
func TestProber_DeniedLookBringsOneDecrypt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(10 * time.Second)
		deny := func() {
			r.prober.Polled(keyvault.Attributes{}, &keyvault.Error{Op: keyvault.OpGet, Key: unversioned, Reason: keyvault.AccessDenied})
			synctest.Wait()
		}
		for range 5 {
			deny()
			time.Sleep(time.Second)
		}
		require.Equal(t, 2, v.count(keyvault.OpDecrypt))
		r.prober.Polled(keyvault.Attributes{Key: key, Enabled: true}, nil)
		deny()
		require.Equal(t, 3, v.count(keyvault.OpDecrypt))
	})
	// The prober's own look.
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(10 * time.Second)
		v.set(func(v *fakeVault) { v.fail = always(keyvault.AccessDenied) })
		time.Sleep(40 * time.Second)
		require.Equal(t, keyvault.AccessDenied, reasonOf(t, r.tracker.Usable(t.Context())))
	})
}

// A vault that decrypts and cannot be looked at is not asked for ever faster.
func TestProber_FailedPollsAreNoLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(10 * time.Second)
		v.set(func(v *fakeVault) { v.calls, v.fail = nil, always(keyvault.Unreachable, keyvault.OpGet) })
		for range 600 {
			r.prober.Polled(keyvault.Attributes{}, &keyvault.Error{Op: keyvault.OpGet, Key: unversioned, Reason: keyvault.Unreachable})
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, v.count(keyvault.OpDecrypt), 13, "in a minute")
		require.NoError(t, r.prober.Late())
	})
}

// The grace of a key-state failure is shorter than the period of the prober: a key
// that is back within it is not lost, whoever saw the failure.
func TestProber_KeyBackWithinItsGrace(t *testing.T) {
	for _, seen := range []string{"by a decrypt", "by a poll", "by the prober"} {
		t.Run(seen, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &fakeVault{}
				r := start(t, v, health.Graces{}, "")
				time.Sleep(10 * time.Second)
				v.set(func(v *fakeVault) { v.fail = always(keyvault.KeyDisabled) })
				switch seen {
				case "by a decrypt":
					r.tracker.Observe(outcome(keyvault.OpDecrypt, keyvault.KeyDisabled))
				case "by a poll":
					r.prober.Polled(keyvault.Attributes{Key: key}, nil)
				default:
					time.Sleep(time.Until(r.seen(t, health.Degraded)))
				}
				time.Sleep(9 * time.Second)
				require.Equal(t, health.Degraded, r.tracker.View().Phase)
				v.set(func(v *fakeVault) { v.fail = nil })
				time.Sleep(5500 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, health.Usable, r.tracker.View().Phase)
			})
		})
	}
}

// seen waits until a phase is reached.
func (r *rig) seen(t *testing.T, phase health.Phase) time.Time {
	for range 1000 {
		if r.tracker.View().Phase == phase {
			return time.Now()
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
	}
	t.Fatalf("never %s", phase)
	return time.Time{}
}

// An Encrypt that succeeds is no proof that the key is back, but the decrypt that it
// brings at once is. If there is none, the vault is not asked for ever faster.
func TestProber_EncryptBringsDecrypt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(10 * time.Second)
		v.set(func(v *fakeVault) { v.fail = always(keyvault.KeyDisabled) })
		r.tracker.Observe(outcome(keyvault.OpDecrypt, keyvault.KeyDisabled))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, health.Lost, r.tracker.View().Phase)

		v.set(func(v *fakeVault) { v.calls = nil })
		for range 600 {
			r.tracker.Observe(outcome(keyvault.OpEncrypt, ""))
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, v.count(keyvault.OpDecrypt), 13, "in a minute")
		require.NoError(t, r.prober.Late())

		time.Sleep(10 * time.Second)
		v.set(func(v *fakeVault) { v.fail = nil })
		r.tracker.Observe(outcome(keyvault.OpEncrypt, ""))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, health.Usable, r.tracker.View().Phase)
	})
}

// What kept the version from being found out is over: that is no failure of the key.
func TestTracker_SaysNothingOfANewVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		tr := health.NewTracker(health.Config{Key: unversioned, Logger: zap.New(core)})
		p := health.NewProber(health.ProberConfig{Vault: &fakeVault{}, Tracker: tr})
		p.Polled(keyvault.Attributes{}, &keyvault.Error{Op: keyvault.OpGet, Key: unversioned, Reason: keyvault.AccessDenied, Text: "no"})
		time.Sleep(90 * time.Second)
		tr.Follow(key, time.Time{}, time.Time{})
		tr.View()
		tr.Observe(outcome(keyvault.OpDecrypt, ""))
		lines := logs.All()
		require.Len(t, lines, 2)
		require.Equal(t, "no", lines[0].ContextMap()["text"])
		require.NotContains(t, lines[0].ContextMap(), "version")
		require.Equal(t, "key is usable", lines[1].Message)
		require.Equal(t, key.Version, lines[1].ContextMap()["version"])
		require.Equal(t, 90*time.Second, lines[1].ContextMap()["after"])

		tr.Observe(outcome(keyvault.OpDecrypt, keyvault.Unreachable))
		require.Equal(t, key.Version, logs.All()[2].ContextMap()["version"])
	})
}
