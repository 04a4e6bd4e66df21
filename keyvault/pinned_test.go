package keyvault_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// wasPinned makes a key with a version of half an hour, and a replica, not started yet,
// that resumes the one before it, of which only the name is known. A list fails.
func wasPinned(list keyvault.Reason) (v *modelVault, first, second *modelVersion, r *replica) {
	v = &modelVault{}
	first = v.rotate(nil)
	time.Sleep(time.Hour)
	second = v.rotate(nil)
	time.Sleep(30 * time.Minute)
	r = &replica{way: &modelReplica{vault: v}, memory: &modelMemory{ref: key0.WithVersion(first.id)}}
	r.way.setFail(list, keyvault.OpList)
	return v, first, second, r
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

// A version that was pinned by a process that might only encrypt and decrypt: how old it
// is tells itself, not a list, which may be forbidden or fail.
func TestFollow_FromPinnedWithoutGet(t *testing.T) {
	for name, fail := range map[string]keyvault.Reason{"no list": keyvault.AccessDenied, "a list that fails": keyvault.Unreachable} {
		synctest.Test(t, func(t *testing.T) {
			_, first, second, r := wasPinned(fail)
			r.build(t)
			require.Equal(t, id(first), r.keys.KeyID(""))
			r.run()
			defer func() { r.stop() }()
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
			v, first, second, r := wasPinned(keyvault.AccessDenied)
			r.way.skew = skew
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
		v, first, second, r := wasPinned(keyvault.AccessDenied)
		v.set(first, func(m *modelVersion) { m.silent = true })
		r.start(t)
		defer func() { r.stop() }()
		rest(time.Hour)
		v.set(first, func(m *modelVersion) { m.silent = false })
		rest(90 * time.Second)
		require.Equal(t, id(second), r.keys.KeyID(""))
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
