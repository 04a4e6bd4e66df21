package keyvault_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

var key0 = key1.WithVersion("")

// A replica is a following keyring with one connection to it, as its
// kube-apiserver has one.
type replica struct {
	way    *modelReplica
	memory *modelMemory
	keys   *keyvault.Keyring
	events []keyvault.RotationEvent
	polls  []*keyvault.Error // what each look came to
	warned []*keyvault.Error
	stop   func()

	told, held string // what a connection keeps
}

func (r *replica) start(t testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := keyvault.FollowConfig{
		KeyringConfig: keyvault.KeyringConfig{
			Vault: r.way, Directory: r.way, Write: key0,
			OnEvent: func(e keyvault.RotationEvent) { r.events = append(r.events, e) },
			OnPoll:  func(_ keyvault.Attributes, e *keyvault.Error) { r.polls = append(r.polls, e) },
			Warn:    func(e *keyvault.Error) { r.warned = append(r.warned, e) },
		},
	}
	if r.memory != nil {
		cfg.Memory = r.memory
	}
	var err error
	r.keys, err = keyvault.NewFollowing(cfg)
	require.NoError(t, err)
	r.told, r.held = "", ""
	done := make(chan struct{})
	go func() { r.keys.Run(ctx); close(done) }()
	r.stop = func() { cancel(); <-done }
}

func newReplica(t testing.TB, v *modelVault, skew time.Duration) *replica {
	r := &replica{way: &modelReplica{vault: v, skew: skew}, memory: &modelMemory{}}
	r.start(t)
	return r
}

// inUse makes a key with one version that has been there for an hour, and a replica that writes with it.
func inUse(t testing.TB) (*modelVault, *modelVersion, *replica) {
	v := &modelVault{}
	first := v.rotate(nil)
	time.Sleep(time.Hour)
	r := newReplica(t, v, 0)
	t.Cleanup(func() { r.stop() })
	synctest.Wait()
	return v, first, r
}

func id(m *modelVersion) string { return key0.WithVersion(m.id).KeyID() }

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

// rest lets time pass, and everything come to rest then.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *replica) steps() (found []keyvault.RotationStep) {
	for _, e := range r.events {
		found = append(found, e.Step)
	}
	return found
}

func TestFollow_Steps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		first := v.rotate(nil)
		time.Sleep(time.Hour)
		r := newReplica(t, v, 0)
		defer func() { r.stop() }()
		require.Empty(t, r.keys.KeyID(""), "nothing is known before the first look")
		require.Equal(t, key0, r.keys.WriteKey())
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
		r.start(t)
		require.Equal(t, id(second), r.keys.KeyID(""), "before any look")
		rest(time.Minute)
		third := v.rotate(nil)
		rest(2 * time.Minute)
		require.Equal(t, keyvault.VersionLearned, r.events[0].Step)
		require.Equal(t, third.id, r.events[0].Key.Version, "the first version is older, and no news")
	})
}

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
		r.way.setFail("")
		rest(10*time.Minute + verifyPause)
		require.Equal(t, id(second), r.keys.KeyID(""))
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
		r.way.setFail("")
		rest(70 * time.Second)
		require.Equal(t, id(second), r.keys.KeyID(""))
	})
}

// A fault ends by itself, and nobody is to be late then.
func TestFollow_AFaultIsTriedOftenForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, _, r := inUse(t)
		r.way.setFail(keyvault.Unreachable, keyvault.OpEncrypt)
		second := v.rotate(nil)
		rest(24 * time.Hour)
		r.way.setFail("")
		rest(verifyPause)
		require.Equal(t, id(second), r.keys.KeyID(""))
	})
}

// verifyPause is a little more than the pause between two round trips.
const verifyPause = 11 * time.Second

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

// An outage at the switch: it waits, and nobody is told anything new.
func TestFollow_OutageAtTheSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, first, r := inUse(t)
		second := v.rotate(nil)
		rest(2 * time.Minute)
		r.way.setFail(keyvault.Unreachable, keyvault.OpGet, keyvault.OpEncrypt, keyvault.OpDecrypt, keyvault.OpList)
		time.Sleep(time.Hour)
		require.Equal(t, id(first), r.keys.KeyID(""))
		r.way.setFail("")
		rest(2 * time.Minute)
		require.Equal(t, id(second), r.keys.KeyID(""))
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
		r.way.setFail("")
		rest(verifyPause)
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

// A process that was pinned leaves behind when its version was created, so that one
// that follows does not take an older one for newer.
func TestPinned_ThenFollowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		v.rotate(nil)
		time.Sleep(time.Hour)
		second := v.rotate(nil)
		created := time.Now()
		way := &modelReplica{vault: v}
		memory := &modelMemory{}
		var events []keyvault.RotationEvent
		pinned, err := keyvault.NewPinned(keyvault.KeyringConfig{
			Vault: way, Directory: way, Write: key0.WithVersion(second.id), Memory: memory,
			OnEvent: func(e keyvault.RotationEvent) { events = append(events, e) },
		})
		require.NoError(t, err)
		_, _, err = pinned.Encrypt(t.Context(), id(second), []byte("seed"))
		require.NoError(t, err)
		require.Equal(t, second.id, memory.ref.Version)
		ctx, stop := context.WithCancel(t.Context())
		go pinned.Run(ctx)
		rest(time.Minute)
		require.WithinDuration(t, created, memory.created, time.Second)

		// A restore, or a server that lags: what the vault names now is older.
		v.set(second, func(m *modelVersion) { m.gone = true })
		rest(2 * time.Hour)
		require.Empty(t, events, "an older one is not available as newer")
		require.False(t, pinned.Behind())
		stop()
		r := &replica{way: way, memory: memory}
		r.start(t)
		defer func() { r.stop() }()
		rest(time.Hour)
		require.Equal(t, id(second), r.keys.KeyID(""))
	})
}

// Behind is what operators wait for the end of: from when a newer version is known until
// it writes, also over a restart and whichever server is asked.
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
			r.memory = memory
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

// A version that was pinned by a process that might only encrypt and decrypt: how old it
// is tells itself, not a list, which may be forbidden or fail.
func TestFollow_FromPinnedWithoutGet(t *testing.T) {
	for name, fail := range map[string]keyvault.Reason{"no list": keyvault.AccessDenied, "a list that fails": keyvault.Unreachable} {
		synctest.Test(t, func(t *testing.T) {
			v := &modelVault{}
			first := v.rotate(nil)
			time.Sleep(time.Hour)
			second := v.rotate(nil)
			time.Sleep(30 * time.Minute)
			r := &replica{way: &modelReplica{vault: v}, memory: &modelMemory{ref: key0.WithVersion(first.id)}}
			r.way.setFail(fail, keyvault.OpList)
			r.start(t)
			defer func() { r.stop() }()
			require.Equal(t, id(first), r.keys.KeyID(""))
			rest(time.Minute)
			require.Equal(t, id(second), r.keys.KeyID(""), name)
			require.Equal(t, []keyvault.RotationStep{keyvault.VersionLearned, keyvault.VersionVerified, keyvault.VersionAdopted}, r.steps())
		})
	}
}

// As long as that cannot be found out, only what is made after the start is newer, by
// the vault's clock; and the log says why.
func TestFollow_FromPinnedOfUnknownAge(t *testing.T) {
	for _, skew := range []time.Duration{0, 24 * time.Hour, -24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			v := &modelVault{}
			first := v.rotate(nil)
			time.Sleep(time.Hour)
			second := v.rotate(nil)
			time.Sleep(30 * time.Minute)
			r := &replica{way: &modelReplica{vault: v, skew: skew}, memory: &modelMemory{ref: key0.WithVersion(first.id)}}
			r.way.setFail(keyvault.AccessDenied, keyvault.OpList)
			v.set(first, func(m *modelVersion) { m.silent = true })
			r.start(t)
			defer func() { r.stop() }()
			rest(time.Hour)
			require.Equal(t, id(first), r.keys.KeyID(""), "%v", skew)
			require.Equal(t, []keyvault.RotationStep{keyvault.VersionWaiting}, r.steps())
			require.Equal(t, second.id, r.events[0].Key.Version)
			require.Equal(t, keyvault.Unreachable, r.events[0].Err.Reason)
			require.Contains(t, r.events[0].Err.Text, "created")

			third := v.rotate(nil)
			rest(4 * time.Minute)
			require.Equal(t, id(third), r.keys.KeyID(""), "%v", skew)
		})
	}
}

// It is asked for again with every poll.
func TestFollow_FromPinnedAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		first := v.rotate(nil)
		time.Sleep(time.Hour)
		second := v.rotate(nil)
		time.Sleep(30 * time.Minute)
		r := &replica{way: &modelReplica{vault: v}, memory: &modelMemory{ref: key0.WithVersion(first.id)}}
		r.way.setFail(keyvault.AccessDenied, keyvault.OpList)
		v.set(first, func(m *modelVersion) { m.silent = true })
		r.start(t)
		defer func() { r.stop() }()
		rest(time.Hour)
		v.set(first, func(m *modelVersion) { m.silent = false })
		rest(90 * time.Second)
		require.Equal(t, id(second), r.keys.KeyID(""))
	})
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

// A pinned keyring looks once an hour, says once what it sees, and stays.
func TestPinned_ReportsNewerVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		first := v.rotate(nil)
		way := &modelReplica{vault: v}
		var events []keyvault.RotationEvent
		looks := 0
		keys, err := keyvault.NewPinned(keyvault.KeyringConfig{
			Vault: way, Directory: way, Write: key0.WithVersion(first.id),
			OnEvent: func(e keyvault.RotationEvent) { events = append(events, e) },
			OnPoll:  func(keyvault.Attributes, *keyvault.Error) { looks++ },
		})
		require.NoError(t, err)
		go keys.Run(t.Context())
		rest(12 * time.Hour)
		require.Empty(t, events)
		require.False(t, keys.Behind())
		require.InDelta(t, 12, looks, 2)
		second := v.rotate(nil)
		rest(12 * time.Hour)
		require.Len(t, events, 1)
		require.Equal(t, keyvault.VersionAvailable, events[0].Step)
		require.Equal(t, second.id, events[0].Key.Version)
		require.True(t, keys.Behind())
		require.Equal(t, id(first), keys.KeyID(""))
		require.NoError(t, keys.Late())
	})
}

// Of a version of whose creation the vault tells nothing, as after a restore without it,
// nobody can say that another one is newer.
func TestPinned_UnknownVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &modelVault{}
		v.rotate(nil)
		second := v.rotate(func(m *modelVersion) { m.gone = true })
		way := &modelReplica{vault: v}
		keys, err := keyvault.NewPinned(keyvault.KeyringConfig{
			Vault: way, Directory: way, Write: key0.WithVersion(second.id),
			OnEvent: func(e keyvault.RotationEvent) { require.Fail(t, "an event", "%v", e) },
		})
		require.NoError(t, err)
		go keys.Run(t.Context())
		rest(2 * time.Hour)
		require.False(t, keys.Behind())
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
