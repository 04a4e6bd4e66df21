package health_test

import (
	"crypto/sha256"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

// asked is a Decrypt of a seed that a kube-apiserver has asked for.
func asked(seed string, reason keyvault.Reason) keyvault.SeedEvent {
	e := keyvault.SeedEvent{Op: keyvault.OpDecrypt, Key: key, Sum: sha256.Sum256([]byte(seed)), Time: time.Now()}
	if reason != "" {
		e.Err = &keyvault.Error{Op: e.Op, Key: key, Reason: reason, Text: "seen " + string(reason)}
	}
	return e
}

// A peer's kube-apiserver has made a new seed, and this node cannot reach the vault.
func TestTracker_CutOff(t *testing.T) {
	for _, reason := range []keyvault.Reason{keyvault.Unreachable, keyvault.NetworkDenied, keyvault.Throttled, keyvault.CredentialsRefused} {
		t.Run(string(reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &fakeVault{}
				r := start(t, v, health.Graces{}, "")
				synctest.Wait()
				r.tracker.Seed(asked("old", ""))
				time.Sleep(10 * time.Second)
				v.set(func(v *fakeVault) { v.fail = always(reason) })

				r.tracker.Seed(asked("old", reason))
				time.Sleep(10 * time.Second)
				require.NoError(t, r.tracker.Ready(t.Context()), "a seed that was opened here before is in others' memory too")

				r.tracker.Seed(asked("new", reason))
				time.Sleep(5500 * time.Millisecond)
				synctest.Wait()
				err := r.tracker.Ready(t.Context())
				require.Equal(t, reason, reasonOf(t, err), "the canary has borne it out")
				require.Contains(t, err.Error(), string(reason)+": a seed that another kube-apiserver has made")
				require.Equal(t, health.CutOff, r.tracker.View().Phase)
				require.Equal(t, 1, r.logs.FilterMessage("this node is cut off: Status fails until a decrypt succeeds, so that other nodes take the traffic").Len())

				for range 80 { // as a kube-apiserver repeats it in a second
					r.tracker.Seed(asked("new", reason))
				}
				before := v.total()
				time.Sleep(time.Minute)
				require.LessOrEqual(t, v.total()-before, 20, "asking again and again brings no more calls")

				v.set(func(v *fakeVault) { v.fail = nil })
				time.Sleep(40 * time.Second)
				synctest.Wait()
				require.NoError(t, r.tracker.Ready(t.Context()))
				require.Equal(t, health.Usable, r.tracker.View().Phase)
			})
		})
	}
}

// What says something about the seed or its version, and a vault that answers the
// canary, redden no node.
func TestTracker_NotCutOff(t *testing.T) {
	for name, tc := range map[string]struct {
		reason keyvault.Reason
		fail   func(keyvault.Op) keyvault.Reason
	}{
		"the canary succeeds":            {keyvault.Unreachable, nil},
		"only looks at the key fail":     {keyvault.Unreachable, always(keyvault.Unreachable, keyvault.OpGet)},
		"the old version is disabled":    {keyvault.KeyDisabled, always(keyvault.Unreachable)},
		"the ciphertext is broken":       {keyvault.BadCiphertext, always(keyvault.Unreachable)},
		"the caller has left":            {keyvault.Canceled, always(keyvault.Unreachable)},
		"the key ID belongs to no key":   {keyvault.UnknownKey, always(keyvault.Unreachable)},
		"the version can no longer seal": {keyvault.KeyExpired, always(keyvault.Unreachable)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &fakeVault{}
				r := start(t, v, health.Graces{}, "")
				synctest.Wait()
				time.Sleep(10 * time.Second)
				v.set(func(v *fakeVault) { v.fail = tc.fail })
				r.tracker.Seed(asked("new", tc.reason))
				for range 120 {
					time.Sleep(time.Second)
					require.NoError(t, r.tracker.Ready(t.Context()))
				}
			})
		})
	}
}

// What this node has opened is known to the process after it.
func TestTracker_SeedsSurviveRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &fakeVault{}, health.Graces{}, path)
		synctest.Wait()
		r.tracker.Seed(asked("opened", ""))
		r.tracker.Seed(keyvault.SeedEvent{Op: keyvault.OpEncrypt, Key: key, Sum: sha256.Sum256([]byte("sealed")), Time: time.Now()})
	})
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{fail: always(keyvault.Unreachable)}
		r := start(t, v, health.Graces{}, path)
		time.Sleep(10 * time.Second)
		for _, seed := range []string{"opened", "sealed"} {
			r.tracker.Seed(asked(seed, keyvault.Unreachable))
		}
		time.Sleep(time.Minute)
		require.NoError(t, r.tracker.Ready(t.Context()))
		r.tracker.Seed(asked("never seen", keyvault.Unreachable))
		synctest.Wait()
		require.Equal(t, health.CutOff, r.tracker.View().Phase, "the canary is known to fail: no need to wait")
	})
}

// A node that is cut off is so after a restart too, until a decrypt succeeds.
func TestTracker_CutOffSurvivesRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, path)
		synctest.Wait()
		time.Sleep(time.Second)
		v.set(func(v *fakeVault) { v.fail = always(keyvault.Unreachable) })
		r.tracker.Seed(asked("new", keyvault.Unreachable))
		time.Sleep(10 * time.Second)
		require.Equal(t, health.CutOff, r.tracker.View().Phase)
	})
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(15 * time.Second)
		v := &fakeVault{fail: always(keyvault.Unreachable)}
		r := start(t, v, health.Graces{}, path)
		err := r.tracker.Ready(t.Context())
		require.Equal(t, keyvault.Unreachable, reasonOf(t, err))
		require.Contains(t, err.Error(), "a seed that another kube-apiserver has made")
		require.Contains(t, err.Error(), "before this process started")
		v.set(func(v *fakeVault) { v.fail = nil })
		time.Sleep(40 * time.Second)
		require.NoError(t, r.tracker.Ready(t.Context()))
	})
	// A vault that is back is asked before the first Status says anything.
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute)
		r := start(t, &fakeVault{took: time.Second}, health.Graces{}, path)
		require.NoError(t, r.tracker.Ready(t.Context()))
	})
}

// A 404 of a version that not every server of the vault may know yet says nothing.
func TestTracker_YoungVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		age  time.Duration
		kind keyvault.Kind
	}{
		"young": {-time.Minute, keyvault.KindFault},
		"old":   {-4 * time.Minute, keyvault.KindKeyState},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := health.NewTracker(health.Config{Key: unversioned})
				settled := time.Now().Add(tc.age).Add(keyvault.DefaultActivationDelay)
				tr.Follow(key, time.Now(), settled)
				tr.Observe(outcome(keyvault.OpDecrypt, keyvault.KeyNotFound))
				time.Sleep(time.Minute)
				require.Equal(t, tc.kind, tr.View().Kind)
				require.Equal(t, tc.kind == keyvault.KindFault, tr.Ready(t.Context()) == nil)
			})
		})
	}
}

// The attributes tell a pinned version's age, and another 404 after it has grown up counts.
func TestProber_YoungVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{created: time.Now()}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(time.Minute)
		v.set(func(v *fakeVault) { v.fail = always(keyvault.KeyNotFound) })
		time.Sleep(90 * time.Second)
		require.NoError(t, r.tracker.Ready(t.Context()))
		require.Equal(t, keyvault.KindFault, r.tracker.View().Kind)
		time.Sleep(2 * time.Minute)
		require.Equal(t, keyvault.KeyNotFound, reasonOf(t, r.tracker.Ready(t.Context())))
		require.Equal(t, keyvault.KindKeyState, r.tracker.View().Kind)
	})
}
