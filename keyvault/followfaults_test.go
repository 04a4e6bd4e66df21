package keyvault_test

import (
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// A version that fails its round trip does not write, and the log is told once.
func TestFollow_AFailingVersionWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, first, r := inUse(t)
		// As a region that has not heard of it yet.
		r.way.setFail(keyvault.KeyNotFound, keyvault.OpEncrypt)
		second := v.rotate(nil)
		rest(20 * time.Minute)
		require.Equal(t, id(first), r.keys.KeyID(""))
		require.Equal(t, []keyvault.RotationStep{keyvault.VersionAdopted, keyvault.VersionLearned, keyvault.VersionWaiting}, r.steps())
		require.Equal(t, keyvault.KeyNotFound, r.events[2].Err.Reason)
		r.heals(t, 10*time.Minute+verifyPause, second)
	})
}

// One that can never work is tried more and more seldom; the first tries lie before its
// time, so that a region that lags makes nobody late.
func TestFollow_AHopelessVersionIsTriedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, first, r := inUse(t)
		r.way.setFail(keyvault.OperationNotPermitted, keyvault.OpEncrypt)
		second := v.rotate(nil)
		tries := func(d time.Duration) int {
			before := r.way.called(keyvault.OpEncrypt)
			rest(d)
			return r.way.called(keyvault.OpEncrypt) - before
		}
		require.Greater(t, tries(3*time.Minute), 10, "before its time")
		require.Less(t, tries(24*time.Hour), 200)
		require.Equal(t, id(first), r.keys.KeyID(""))

		// A change of it may have been what was missing.
		rest(200 * time.Second)
		r.way.setFail("")
		v.set(second, func(*modelVersion) {})
		rest(4*time.Minute + 5*time.Second)
		require.Equal(t, id(second), r.keys.KeyID(""))
	})
}

// What was refused together with the look for it is tried when that is answered again.
func TestFollow_ARefusalOfTheVaultEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, _, r := inUse(t)
		second := v.rotate(nil)
		rest(2 * time.Minute)
		r.way.setFail(keyvault.NetworkDenied, keyvault.OpGet, keyvault.OpEncrypt, keyvault.OpDecrypt, keyvault.OpList)
		rest(12*time.Hour + 7*time.Minute)
		r.heals(t, 70*time.Second, second)
	})
}

// A fault ends by itself, and nobody is to be late then.
func TestFollow_AFaultIsTriedOftenForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, _, r := inUse(t)
		r.way.setFail(keyvault.Unreachable, keyvault.OpEncrypt)
		second := v.rotate(nil)
		rest(24 * time.Hour)
		r.heals(t, verifyPause, second)
	})
}

// verifyPause is a little more than the pause between two round trips.
const verifyPause = 11 * time.Second

// An outage at the switch: it waits, and nobody is told anything new.
func TestFollow_OutageAtTheSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, first, r := inUse(t)
		second := v.rotate(nil)
		rest(2 * time.Minute)
		r.way.setFail(keyvault.Unreachable, keyvault.OpGet, keyvault.OpEncrypt, keyvault.OpDecrypt, keyvault.OpList)
		time.Sleep(time.Hour)
		require.Equal(t, id(first), r.keys.KeyID(""))
		r.heals(t, 2*time.Minute, second)
	})
}

// An outage that is known stops the switch, though the last round trip is fresh.
func TestFollow_OutageJustBeforeTheSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, first, r := inUse(t)
		second := v.rotate(nil)
		rest(170 * time.Second)
		r.way.setFail(keyvault.Unreachable, keyvault.OpEncrypt, keyvault.OpDecrypt)
		current := key0.WithVersion(first.id)
		r.observe(keyvault.OpDecrypt, current, &keyvault.Error{Op: keyvault.OpDecrypt, Key: current, Reason: keyvault.Unreachable})
		rest(time.Minute)
		require.Equal(t, id(first), r.keys.KeyID(""))
		r.heals(t, verifyPause, second)
	})
}

// Without memory, a young version does not write at once because a look at the others
// has met a fault; it does if that is not permitted.
func TestFollow_StartWithoutTheList(t *testing.T) {
	for reason, waits := range map[keyvault.Reason]bool{keyvault.Throttled: true, keyvault.Unreachable: true, keyvault.AccessDenied: false} {
		synctest.Test(t, func(t *testing.T) {
			v := &modelVault{}
			first := v.rotate(nil)
			time.Sleep(time.Hour)
			second := v.rotate(nil)
			time.Sleep(10 * time.Second)
			r := &replica{way: &modelReplica{vault: v}}
			r.way.setFail(reason, keyvault.OpList)
			r.start(t)
			defer func() { r.stop() }()
			rest(20 * time.Second)
			if !waits {
				require.Equal(t, id(second), r.keys.KeyID(""), reason)
				return
			}
			require.Empty(t, r.keys.KeyID(""), reason)
			last := r.polls[len(r.polls)-1]
			require.NotNil(t, last, "what holds the start up is no secret")
			require.Equal(t, reason, last.Reason)
			require.Contains(t, last.Text, "younger than the activation delay")
			require.Empty(t, r.warned, "a list is not optional now")
			_, _, err := r.keys.Decrypt(t.Context(), id(second), "", []byte(second.id+"00"))
			require.NoError(t, err, "it is read meanwhile")
			r.way.setFail("")
			rest(6 * time.Second)
			require.Equal(t, id(first), r.keys.KeyID(""), reason)

			// One that is no longer young writes, whatever becomes of the list.
			r.way.setFail(reason, keyvault.OpList)
			r.stop()
			rest(5 * time.Minute)
			r.start(t)
			synctest.Wait()
			require.Equal(t, id(second), r.keys.KeyID(""), reason)
		})
	}
}

// After the switch, a fault takes those back who hold a seed under the old ID only.
func TestFollow_OutageAfterTheSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, first, r := inUse(t)
		second := v.rotate(nil)
		rest(4 * time.Minute)
		current := key0.WithVersion(second.id)
		require.Equal(t, id(second), r.keys.KeyID(id(first)))
		for _, refusal := range []keyvault.Reason{keyvault.KeyDisabled, keyvault.KeyExpired, keyvault.Canceled} {
			r.observe(keyvault.OpEncrypt, current, &keyvault.Error{Op: keyvault.OpEncrypt, Key: current, Reason: refusal})
			require.Equal(t, id(second), r.keys.KeyID(id(first)), "%s is no fault", refusal)
		}
		away := &keyvault.Error{Op: keyvault.OpEncrypt, Key: current, Reason: keyvault.Unreachable}
		r.observe(keyvault.OpDecrypt, key0.WithVersion(first.id), away)
		require.Equal(t, id(second), r.keys.KeyID(id(first)), "a fault of the old version says nothing")
		r.observe(keyvault.OpEncrypt, current, away)
		require.Equal(t, id(first), r.keys.KeyID(id(first)))
		require.Equal(t, id(second), r.keys.KeyID(""))
		require.Equal(t, id(second), r.keys.KeyID(key0.WithVersion("00000000000000000000000000000000").KeyID()), "never one that did not write")
		_, ref, err := r.keys.Encrypt(t.Context(), id(first), []byte("seed"))
		require.NoError(t, err)
		require.Equal(t, first.id, ref.Version)
		r.observe(keyvault.OpDecrypt, current, nil)
		require.Equal(t, id(second), r.keys.KeyID(id(first)))

		// An Encrypt that fails without the vault being asked counts as well, and a
		// refusal, which Status bears too.
		for _, reason := range []keyvault.Reason{keyvault.Throttled, keyvault.NetworkDenied} {
			r.way.setFail(reason, keyvault.OpEncrypt)
			_, _, err = r.keys.Encrypt(t.Context(), id(second), []byte("seed"))
			require.Error(t, err)
			require.Equal(t, id(first), r.keys.KeyID(id(first)), reason)
			r.observe(keyvault.OpDecrypt, current, nil)
		}
	})
}
