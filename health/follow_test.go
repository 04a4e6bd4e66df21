package health_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

var (
	unversioned = key.WithVersion("")
	nextKey     = key.WithVersion("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee")
)

// A switch to a proven version needs no evidence first, and what was held against
// the version before is forgotten.
func TestTracker_Follow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := health.NewTracker(health.Config{Key: key})
		tr.Observe(keyvault.Outcome{Op: keyvault.OpDecrypt, Key: key, Time: time.Now()})
		fault := &keyvault.Error{Op: keyvault.OpDecrypt, Key: key, Reason: keyvault.KeyDisabled}
		tr.Observe(keyvault.Outcome{Op: keyvault.OpDecrypt, Key: key, Err: fault, Time: time.Now()})
		time.Sleep(time.Minute)
		require.Error(t, tr.Ready(t.Context()))

		_, changed := tr.Key()
		tr.Follow(nextKey, time.Now().Add(-30*time.Second), time.Time{})
		require.NoError(t, tr.Ready(t.Context()))
		require.Equal(t, health.Usable, tr.View().Phase)
		<-changed
		tr.Observe(keyvault.Outcome{Op: keyvault.OpDecrypt, Key: key, Err: fault, Time: time.Now()})
		require.Equal(t, health.Usable, tr.View().Phase, "an old version alone never fails Status")
	})
}

// While no version is known, whatever keeps it from being known is the evidence,
// a denied permission too.
func TestTracker_NoVersion(t *testing.T) {
	for _, reason := range []keyvault.Reason{keyvault.AccessDenied, keyvault.KeyNotFound, keyvault.Unreachable} {
		synctest.Test(t, func(t *testing.T) {
			tr := health.NewTracker(health.Config{Key: unversioned})
			p := health.NewProber(health.ProberConfig{Vault: &fakeVault{}, Tracker: tr})
			begin := time.Now()
			time.AfterFunc(time.Second, func() {
				p.Polled(keyvault.Attributes{}, &keyvault.Error{Op: keyvault.OpGet, Key: unversioned, Reason: reason})
			})
			err := tr.Ready(t.Context())
			require.Equal(t, time.Second, time.Since(begin))
			var e *keyvault.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, reason, e.Reason)
			// And it is over when the version is known.
			tr.Follow(key, time.Time{}, time.Time{})
			tr.Observe(keyvault.Outcome{Op: keyvault.OpDecrypt, Key: key, Time: time.Now()})
			require.NoError(t, tr.Ready(t.Context()))
		})
	}
}

// What keeps the version from being known now is shown, not what did so before.
func TestTracker_NoVersionShowsTheLatestCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := health.NewTracker(health.Config{Key: unversioned})
		p := health.NewProber(health.ProberConfig{Vault: &fakeVault{}, Tracker: tr})
		poll := func(op keyvault.Op, reason keyvault.Reason) {
			p.Polled(keyvault.Attributes{}, &keyvault.Error{Op: op, Key: unversioned, Reason: reason})
		}
		poll(keyvault.OpGet, keyvault.NetworkDenied)
		time.Sleep(5 * time.Second)
		began := time.Now()
		for range 3 {
			p.Polled(keyvault.Attributes{Key: key, Enabled: true}, nil)
			poll(keyvault.OpList, keyvault.Unreachable)
			require.Equal(t, keyvault.Unreachable, tr.View().Err.Reason)
			require.Equal(t, began, tr.View().Since)
			time.Sleep(time.Hour)
		}
		poll(keyvault.OpGet, keyvault.NetworkDenied)
		require.Equal(t, keyvault.NetworkDenied, tr.View().Err.Reason)
	})
}

// count is how often an operation was called, once all is at rest.
func (v *fakeVault) count(op keyvault.Op) int {
	synctest.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.calls[op]
}

// The prober waits for a version, probes each at once, and leaves the GET to the
// poll while that shows the version that writes.
func TestProber_Follows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		tr := health.NewTracker(health.Config{Key: unversioned})
		p := health.NewProber(health.ProberConfig{Vault: v, Tracker: tr})
		go p.Run(t.Context())
		time.Sleep(10 * time.Minute)
		require.Zero(t, v.total())
		require.NoError(t, p.Late())

		for _, writes := range []keyvault.Ref{key, nextKey} {
			v.set(func(v *fakeVault) { v.calls = nil })
			tr.Follow(writes, time.Time{}, time.Time{})
			require.Equal(t, 1, v.count(keyvault.OpEncrypt), "at once, with a canary of its own")
			require.Equal(t, 1, v.count(keyvault.OpDecrypt))
			for range 60 {
				p.Polled(keyvault.Attributes{Key: writes, Enabled: true}, nil)
				time.Sleep(time.Minute)
			}
			require.LessOrEqual(t, v.count(keyvault.OpGet), 1, "until it is seen that the polls come regularly")
			require.InDelta(t, 60, v.count(keyvault.OpDecrypt), 8)
		}
		// The newest is another one, or is not seen: the prober looks for itself.
		for range 60 {
			p.Polled(keyvault.Attributes{Key: key, Enabled: true}, nil)
			time.Sleep(time.Minute)
		}
		require.InDelta(t, 60, v.count(keyvault.OpGet), 10)
	})
}

// A pinned keyring looks for a newer version once an hour, which is no reason to leave out
// what the prober would look at.
func TestProber_HourlyPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		for range 5 {
			time.Sleep(time.Hour)
			r.prober.Polled(keyvault.Attributes{Key: key, Enabled: true}, nil)
			v.set(func(v *fakeVault) { v.expires = time.Now().Add(-time.Minute) })
			time.Sleep(67 * time.Second)
			require.Equal(t, health.ReadOnly, r.tracker.View().Phase)
			v.set(func(v *fakeVault) { v.expires = time.Time{} })
		}
	})
}

// What a poll shows of the version that writes counts as a GET of the prober's.
func TestProber_PollTellsDisabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := health.NewTracker(health.Config{Key: key})
		p := health.NewProber(health.ProberConfig{Vault: &fakeVault{}, Tracker: tr})
		tr.Observe(keyvault.Outcome{Op: keyvault.OpDecrypt, Key: key, Time: time.Now()})
		time.Sleep(time.Second)
		p.Polled(keyvault.Attributes{Key: nextKey}, nil)
		require.Equal(t, health.Usable, tr.View().Phase, "another version's")
		p.Polled(keyvault.Attributes{Key: key}, nil)
		require.Equal(t, health.Degraded, tr.View().Phase)
		require.Equal(t, keyvault.KeyDisabled, tr.View().Err.Reason)
	})
}

// Case K03: an expiry is announced once a day from 30 days ahead, and shown.
func TestProber_AnnouncesExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expires := time.Now().Add(32 * 24 * time.Hour).Truncate(time.Second)
		r := start(t, &fakeVault{expires: expires}, health.Graces{}, "")
		warned := func() int { return r.logs.FilterMessageSnippet("will expire").Len() }
		time.Sleep(47 * time.Hour)
		require.Zero(t, warned())
		require.True(t, expires.Equal(r.prober.Expires()))
		time.Sleep(72 * time.Hour)
		require.Equal(t, 3, warned())
	})
}

func TestMemory_Versions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k.state")
	open := func() *health.Memory { return health.OpenMemory(path, unversioned, nil) }
	m := open()
	ref, _ := m.LastVersion()
	require.Equal(t, unversioned, ref)
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m.KeepVersion(key, created)
	m.KeepVersion(nextKey, created.Add(time.Hour))
	m = open()
	ref, when := m.LastVersion()
	require.Equal(t, nextKey, ref)
	require.True(t, when.Equal(created.Add(time.Hour)))
	require.True(t, m.Earlier(key.Version))
	require.False(t, m.Earlier(nextKey.Version))

	// Back by the command line, where the age is not known.
	m.KeepVersion(key, time.Time{})
	ref, when = open().LastVersion()
	require.Equal(t, key, ref)
	require.True(t, when.Equal(created))
	require.True(t, open().Earlier(nextKey.Version))

	// Pinned, it is known a little later.
	thirdKey := key.WithVersion("dddddddddddddddddddddddddddddddd")
	for _, at := range []time.Time{{}, created, {}} {
		m.KeepVersion(thirdKey, at)
	}
	_, when = open().LastVersion()
	require.True(t, when.Equal(created))

	// It is bounded, and what is no version is not believed.
	for i := range 100 {
		m.KeepVersion(key.WithVersion("0123456789abcdef0123456789abcd"+string("0123456789"[i/10])+string("0123456789"[i%10])), created)
	}
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Less(t, len(data), 2000)
	require.NoError(t, os.WriteFile(path, []byte(`{"format":1,"key":"`+key.URL()+`","versions":[{"version":"../etc"}]}`), 0o600))
	ref, _ = open().LastVersion()
	require.Equal(t, unversioned, ref)
	require.NoError(t, os.WriteFile(path, []byte(`{"format":1,"key":"https://other.vault.azure.net/keys/k1/`+key.Version+`","versions":[{"version":"`+key.Version+`"}]}`), 0o600))
	ref, _ = open().LastVersion()
	require.Equal(t, unversioned, ref, "another key's")
}

// A file that cannot be replaced would lead the next process back to the version that
// it names.
func TestMemory_NoFileIsBetterThanAStaleOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k.state")
	m := health.OpenMemory(path, unversioned, nil)
	m.KeepVersion(key, time.Now())
	require.FileExists(t, path)
	require.NoError(t, os.MkdirAll(filepath.Join(path+".new", "in the way"), 0o700))
	m.KeepVersion(nextKey, time.Now())
	require.NoFileExists(t, path)
	require.NoError(t, os.RemoveAll(path+".new"))
	m.KeepVersion(key.WithVersion("dddddddddddddddddddddddddddddddd"), time.Now())
	m = health.OpenMemory(path, unversioned, nil)
	require.True(t, m.Earlier(nextKey.Version), "what could not be written comes with the next")
}

// The host may be spelt in another way from now on.
func TestMemory_SpellingOfTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.state")
		start(t, &fakeVault{}, health.Graces{}, path)
		time.Sleep(time.Minute)
		other := key
		other.Host = strings.ToUpper(other.Host)
		tr := health.NewTracker(health.Config{Key: other, Memory: health.OpenMemory(path, other, nil)})
		require.Equal(t, health.Usable, tr.View().Phase)
	})
}

// The evidence and the canary of one version say nothing about another.
func TestMemory_EvidenceOfTheVersionThatWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.state")
		start(t, &fakeVault{}, health.Graces{}, path)
		time.Sleep(time.Minute)
		m := health.OpenMemory(path, unversioned, nil)
		tr := health.NewTracker(health.Config{Key: unversioned, Memory: m})
		require.Equal(t, health.Starting, tr.View().Phase)
		tr.Follow(nextKey, time.Time{}, time.Time{})
		require.Equal(t, health.Starting, tr.View().Phase)
		tr.Follow(key, time.Time{}, time.Time{})
		require.Equal(t, health.Usable, tr.View().Phase)
	})
}

// A process that ends after a switch and before an Encrypt under the new version: the
// next one begins with the old version, of which it knows what was known.
func TestMemory_KeepsTheProofOfTheVersionToBeginWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.state")
		m := health.OpenMemory(path, unversioned, nil)
		tr := health.NewTracker(health.Config{Key: key, Memory: m})
		p := health.NewProber(health.ProberConfig{Vault: &fakeVault{}, Tracker: tr, Memory: m})
		go p.Run(t.Context())
		m.KeepVersion(key, time.Now())
		time.Sleep(time.Minute)
		phase := func(version keyvault.Ref) health.Phase {
			synctest.Wait()
			return health.NewTracker(health.Config{Key: version, Memory: health.OpenMemory(path, unversioned, nil)}).View().Phase
		}
		thirdKey := key.WithVersion("dddddddddddddddddddddddddddddddd")
		for _, next := range []keyvault.Ref{nextKey, thirdKey} {
			tr.Follow(next, time.Now(), time.Time{})
			require.Equal(t, health.Usable, phase(key), "nothing was answered under a newer one")
			require.Equal(t, health.Usable, phase(next))
		}
		m.KeepVersion(thirdKey, time.Now())
		require.Equal(t, health.Starting, phase(key))
		require.Equal(t, health.Usable, phase(thirdKey))
	})
}
