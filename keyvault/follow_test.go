package keyvault_test

import (
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

func TestFollow_AdoptsTogetherByTheVaultsClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		first := v.rotate(nil)
		time.Sleep(time.Hour)
		var replicas []*replica
		for i, skew := range []time.Duration{0, 7 * time.Hour, -90 * time.Second} {
			time.Sleep(time.Duration(i) * 17 * time.Second)
			replicas = append(replicas, newReplica(t, v, skew))
		}
		time.Sleep(10 * time.Minute)
		for _, r := range replicas {
			require.Equal(t, id(first), r.keys.KeyID(""))
		}
		second := v.rotate(nil)
		began := time.Now()
		switched := make([]time.Time, 3)
		for time.Since(began) < 5*time.Minute {
			time.Sleep(100 * time.Millisecond)
			for i, r := range replicas {
				if switched[i].IsZero() && r.keys.KeyID("") == id(second) {
					switched[i] = time.Now()
				}
			}
		}
		for _, at := range switched {
			require.WithinDuration(t, began.Add(3*time.Minute), at, time.Second)
			require.WithinDuration(t, switched[0], at, 2*time.Second)
		}
		for _, r := range replicas {
			r.stop()
		}
	})
}

func TestFollow_Steps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		first := v.rotate(nil)
		time.Sleep(time.Hour)
		r := &replica{way: &modelReplica{vault: v}, memory: &modelMemory{}}
		r.build(t)
		require.Empty(t, r.keys.KeyID(""), "nothing is known before the first look")
		require.Equal(t, key0, r.keys.WriteKey())
		r.run()
		defer func() { r.stop() }()
		synctest.Wait()
		require.Equal(t, id(first), r.keys.KeyID(""))
		second := v.rotate(nil)
		created := time.Now()
		rest(4 * time.Minute)
		require.Equal(t, []keyvault.RotationStep{
			keyvault.VersionAdopted, keyvault.VersionLearned, keyvault.VersionVerified, keyvault.VersionAdopted,
		}, r.steps())
		at := r.events[3]
		require.Equal(t, first.id, at.From.Version)
		require.Equal(t, second.id, at.Key.Version)
		require.Equal(t, keyvault.AdoptedByRotation, at.Cause)
		require.WithinDuration(t, created.Add(3*time.Minute), at.Due, time.Second)
		require.WithinRange(t, at.Proven, created.Add(2*time.Minute), created.Add(3*time.Minute))

		// Nothing was written under it yet, so the next process begins with what was.
		require.Empty(t, r.memory.ref.Version)
		_, _, err := r.keys.Encrypt(t.Context(), id(second), []byte("seed"))
		require.NoError(t, err)
		require.Equal(t, second.id, r.memory.ref.Version)
		require.WithinDuration(t, created, r.memory.created, time.Second)
		r.stop()
		r.events = nil
		r.build(t)
		require.Equal(t, id(second), r.keys.KeyID(""), "before any look")
		r.run()
		rest(time.Minute)
		third := v.rotate(nil)
		rest(2 * time.Minute)
		require.Equal(t, keyvault.VersionLearned, r.events[0].Step)
		require.Equal(t, third.id, r.events[0].Key.Version, "the first version is older, and no news")
	})
}

// A vault that does not tell when a version was created: it counts from when it was
// first seen.
func TestFollow_WithoutCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, _, r := inUse(t)
		r.way.mu.Lock()
		r.way.silent = true
		r.way.mu.Unlock()
		second := v.rotate(nil)
		rest(2 * time.Minute)
		require.NotEqual(t, id(second), r.keys.KeyID(""))
		rest(3 * time.Minute)
		require.Equal(t, id(second), r.keys.KeyID(""))
	})
}

// A version that is disabled or deleted just before its time is not adopted: aborting a
// rotation that way must not cost the key.
func TestFollow_AbortedJustBeforeTheSwitch(t *testing.T) {
	for _, abort := range []func(*modelVersion){
		func(m *modelVersion) { m.enabled = false },
		func(m *modelVersion) { m.gone = true },
	} {
		for before := 3 * time.Second; before < time.Minute; before += 7 * time.Second {
			synctest.Test(t, func(t *testing.T) {
				v, first, r := inUse(t)
				second := v.rotate(nil)
				rest(3*time.Minute - before)
				v.set(second, abort)
				rest(time.Hour)
				require.Equal(t, id(first), r.keys.KeyID(""), "%v before", before)
			})
		}
	}
}

// An Encrypt that is answered after the next version has begun to write is kept, one
// that is answered after an Encrypt under that is not.
func TestFollow_KeepsTheNewestAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		versions := []*modelVersion{v.rotate(nil)}
		time.Sleep(time.Hour)
		r := newReplica(t, v, 0)
		defer func() { r.stop() }()
		for range 2 {
			rest(5 * time.Minute)
			versions = append(versions, v.rotate(nil))
		}
		rest(5 * time.Minute)
		require.Equal(t, id(versions[2]), r.keys.KeyID(""))
		for _, i := range []int{1, 0, 2, 1, 0} {
			_, _, err := r.keys.Encrypt(t.Context(), id(versions[i]), []byte("seed"))
			require.NoError(t, err)
			if i == 1 && r.memory.ref.Version != versions[2].id {
				require.Equal(t, versions[1].id, r.memory.ref.Version)
			}
		}
		require.Equal(t, versions[2].id, r.memory.ref.Version)
	})
}

// A Date that only one answer has told moves no switch.
func TestFollow_OneWrongDate(t *testing.T) {
	for _, wrong := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			v, first, r := inUse(t)
			second := v.rotate(nil)
			rest(100 * time.Second)
			r.way.setDateOff(wrong)
			rest(time.Minute)
			require.Equal(t, id(first), r.keys.KeyID(""))
			rest(21 * time.Second)
			require.Equal(t, id(second), r.keys.KeyID(""))
		})
	}
}

// Behind is what operators wait for the end of: from when a newer version is known until
// it writes, whatever servers that lag say meanwhile, and over a restart.
func TestFollow_Behind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, first, r := inUse(t)
		require.False(t, r.keys.Behind())
		_, _, err := r.keys.Encrypt(t.Context(), id(first), []byte("seed"))
		require.NoError(t, err)
		second := v.rotate(nil)
		rest(70 * time.Second)
		require.True(t, r.keys.Behind())
		r.way.setLagging()
		for range 3 {
			rest(20 * time.Second)
			require.True(t, r.keys.Behind())
		}
		for _, memory := range []*modelMemory{r.memory, {}} {
			r.stop()
			r.way, r.memory = &modelReplica{vault: v}, memory
			r.start(t)
			rest(time.Second)
			require.Equal(t, id(first), r.keys.KeyID(""))
			require.True(t, r.keys.Behind())
		}
		for r.keys.KeyID("") == id(first) {
			require.True(t, r.keys.Behind())
			rest(time.Second)
		}
		require.Equal(t, id(second), r.keys.KeyID(""))
		for range 20 {
			require.False(t, r.keys.Behind())
			rest(20 * time.Second)
		}
	})
}

// A newest version that cannot encrypt is said once and not adopted.
func TestFollow_TheNewestIsBarred(t *testing.T) {
	for reason, change := range map[keyvault.Reason]func(*modelVersion){
		keyvault.KeyDisabled:    func(m *modelVersion) { m.enabled = false },
		keyvault.KeyExpired:     func(m *modelVersion) { m.expires = time.Now() },
		keyvault.KeyNotYetValid: func(m *modelVersion) { m.notBefore = time.Now().Add(24 * time.Hour) },
	} {
		synctest.Test(t, func(t *testing.T) {
			v, first, r := inUse(t)
			second := v.rotate(change)
			rest(time.Hour)
			require.Equal(t, id(first), r.keys.KeyID(""), reason)
			require.Equal(t, []keyvault.RotationStep{keyvault.VersionAdopted, keyvault.VersionLearned, keyvault.VersionWaiting}, r.steps(), reason)
			require.Equal(t, second.id, r.events[2].Key.Version)
			require.Equal(t, reason, r.events[2].Err.Reason)
			require.True(t, r.keys.Behind())
		})
	}
}

// What the vault names as the newest and is not newer, as after a restore, is said once
// and not adopted.
func TestFollow_TheNewestIsOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		first := v.rotate(nil)
		time.Sleep(time.Hour)
		second := v.rotate(nil)
		time.Sleep(time.Hour)
		r := newReplica(t, v, 0)
		defer func() { r.stop() }()
		synctest.Wait()
		v.set(second, func(m *modelVersion) { m.gone = true })
		rest(time.Hour)
		require.Equal(t, id(second), r.keys.KeyID(""))
		require.False(t, r.keys.Behind())
		require.Equal(t, []keyvault.RotationStep{keyvault.VersionAdopted, keyvault.VersionWaiting}, r.steps())
		require.Equal(t, first.id, r.events[1].Key.Version)
		require.Contains(t, r.events[1].Err.Text, "not newer")
	})
}

// A process that has resumed says so as well.
func TestFollow_TheNewestIsOlderThanWhatIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		first := v.rotate(nil)
		time.Sleep(time.Hour)
		created := time.Now()
		gone := key0.WithVersion("ffffffffffffffffffffffffffffffff")
		r := &replica{way: &modelReplica{vault: v}, memory: &modelMemory{ref: gone, created: created}}
		r.start(t)
		defer func() { r.stop() }()
		rest(time.Hour)
		require.Equal(t, []keyvault.RotationStep{keyvault.VersionWaiting}, r.steps())
		require.Equal(t, first.id, r.events[0].Key.Version)
		require.Contains(t, r.events[0].Err.Text, "not newer")
	})
}

// Late tells a Run that hangs from one that waits for a slow vault.
func TestKeyring_Late(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		v.rotate(nil)
		r := newReplica(t, v, 0)
		rest(24 * time.Hour)
		require.NoError(t, r.keys.Late())
		r.stop()
		rest(2 * time.Minute)
		require.Error(t, r.keys.Late())
	})
}

func TestNewFollowing_ReportsAllFaults(t *testing.T) {
	_, err := keyvault.NewFollowing(keyvault.FollowConfig{KeyringConfig: keyvault.KeyringConfig{Write: key1}, PollInterval: 2 * time.Minute})
	require.ErrorContains(t, err, "a vault is required")
	require.ErrorContains(t, err, "a directory is required")
	require.ErrorContains(t, err, "nothing to follow")
	require.ErrorContains(t, err, "more than half the activation delay of 3m0s")
}
