package health

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

var (
	newKey = keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: "11111111111111111111111111111111"}
	oldKey = newKey.WithVersion("00000000000000000000000000000000")
)

// A book is a vault that is only asked for attributes.
type book struct {
	mu       sync.Mutex
	disabled bool
	fail     keyvault.Reason
	ops      []string
	looks    []time.Time
}

func (b *book) set(disabled bool, fail keyvault.Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.disabled, b.fail = disabled, fail
}

func (b *book) Get(_ context.Context, key keyvault.Ref) (keyvault.Attributes, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if key.SameVersion(newKey) {
		panic("the version that writes is the prober's")
	}
	b.looks = append(b.looks, time.Now())
	if b.fail != "" {
		return keyvault.Attributes{}, &keyvault.Error{Op: keyvault.OpGet, Key: key, Reason: b.fail, Text: "scripted"}
	}
	return keyvault.Attributes{Key: key, Enabled: !b.disabled, KeyOps: b.ops}, nil
}

func (b *book) times() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.looks)
}

type watchRig struct {
	book *book
	uses *Uses
	logs *observer.ObservedLogs
}

func startWatch(t *testing.T) *watchRig {
	core, logs := observer.New(zap.InfoLevel)
	r := &watchRig{&book{}, NewUses(nil), logs}
	tracker := NewTracker(Config{Key: newKey})
	w := NewWatch(WatchConfig{Vault: r.book, Uses: r.uses, Tracker: tracker, Logger: zap.New(core)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *watchRig) decrypted(key keyvault.Ref, reason keyvault.Reason) {
	e := keyvault.SeedEvent{Op: keyvault.OpDecrypt, Key: key, Time: time.Now()}
	if reason != "" {
		e.Err = &keyvault.Error{Op: e.Op, Key: key, Reason: reason, Text: "scripted"}
	}
	r.uses.Seed(e)
}

func (r *watchRig) alarms() []status.Alarm {
	return facts{now: time.Now(), view: View{Key: newKey}, uses: r.uses.snapshot()}.alarms()
}

// One that is disabled while data is under it is known within minutes, though nobody asks for it.
func TestWatch_DisabledInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWatch(t)
		r.decrypted(oldKey, "")
		time.Sleep(time.Hour)
		require.Empty(t, r.alarms())
		r.book.set(true, "")
		time.Sleep(watchUsed + watchTick)
		synctest.Wait()
		alarms := r.alarms()
		require.Len(t, alarms, 1)
		require.Equal(t, status.Critical, alarms[0].Severity)
		require.Equal(t, "KeyDisabled", alarms[0].Reason)
		require.Equal(t, oldKey.Version, alarms[0].Version)
		require.Contains(t, alarms[0].Text, "old version "+oldKey.Version)
		require.Contains(t, alarms[0].Text, "restart no kube-apiserver")
		require.Equal(t, 1, r.logs.FilterMessageSnippet("old key version cannot be read").Len())

		r.book.set(false, "")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.alarms(), "healed within a minute")
		require.Equal(t, 2, r.logs.Len())
	})
}

// Without use it is no alarm; with one long ago it is not yet a critical one.
func TestWatch_Unused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWatch(t)
		r.decrypted(oldKey, "")
		time.Sleep(36 * time.Hour)
		r.book.set(true, "")
		time.Sleep(2 * time.Hour)
		require.Equal(t, status.Warning, r.alarms()[0].Severity)
		r.decrypted(oldKey, keyvault.KeyDisabled)
		require.Equal(t, status.Critical, r.alarms()[0].Severity, "somebody needs it")
		r.decrypted(oldKey, keyvault.Unreachable)
		require.Equal(t, status.Critical, r.alarms()[0].Severity)
		r.decrypted(oldKey, "")
		require.Empty(t, r.alarms(), "it could be read")
	})
	synctest.Test(t, func(t *testing.T) {
		r := startWatch(t)
		r.decrypted(oldKey, "")
		time.Sleep(31 * 24 * time.Hour)
		r.book.set(true, "")
		before := len(r.book.times())
		time.Sleep(48 * time.Hour)
		require.Empty(t, r.alarms())
		require.Len(t, r.book.times(), before, "nobody looks any more")
	})
}

// What a look that is refused or not answered tells is nothing.
func TestWatch_NoNews(t *testing.T) {
	for reason, most := range map[keyvault.Reason]int{keyvault.AccessDenied: 26, keyvault.Unreachable: 300, keyvault.Throttled: 300} {
		synctest.Test(t, func(t *testing.T) {
			r := startWatch(t)
			r.decrypted(oldKey, "")
			r.book.set(false, reason)
			time.Sleep(23 * time.Hour)
			require.Empty(t, r.alarms())
			require.LessOrEqual(t, len(r.book.times()), most)
			require.NotEmpty(t, r.book.times())
		})
	}
}

// Access that is given back is given for all versions: the decrypts of the one that writes tell.
func TestWatch_AccessGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWatch(t)
		r.decrypted(oldKey, "")
		r.decrypted(oldKey, keyvault.AccessDenied)
		time.Sleep(time.Minute)
		require.Equal(t, "AccessDenied", r.alarms()[0].Reason)
		r.uses.Read(newKey.WithVersion("22222222222222222222222222222222"), time.Now())
		require.Empty(t, r.alarms())

		// A key's own list of operations is told by its attributes.
		r.decrypted(oldKey, keyvault.OperationNotPermitted)
		r.uses.Read(newKey, time.Now().Add(time.Second))
		require.Len(t, r.alarms(), 1)
		r.book.mu.Lock()
		r.book.ops = []string{"wrapKey", "decrypt"}
		r.book.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.alarms())
	})
}

// A new node, or one that has lost its memory, learns of a version by being asked for it.
func TestWatch_FirstUseInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWatch(t)
		r.book.set(true, "")
		r.decrypted(oldKey, keyvault.KeyDisabled)
		time.Sleep(time.Minute)
		require.Equal(t, status.Critical, r.alarms()[0].Severity)
		require.Contains(t, r.alarms()[0].Text, "asked for under it in vain")
		r.book.set(false, "")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.alarms(), "healed within a minute of enabling it")

		r.book.set(true, "")
		r.decrypted(oldKey, keyvault.KeyDisabled)
		time.Sleep(25 * time.Hour)
		require.Equal(t, status.Warning, r.alarms()[0].Severity, "nobody has asked again")
	})
}

// The version that writes is another matter, which the tracker tells.
func TestWatch_LeavesTheWriteVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWatch(t)
		r.decrypted(newKey, keyvault.KeyDisabled)
		time.Sleep(time.Minute)
		require.Zero(t, r.logs.Len())
		r.uses.Read(newKey, time.Now())
		synctest.Wait()
		require.Nil(t, r.uses.snapshot()[0].bad, "it goes into no rotation as a bad one")
	})
}

// A version that has written was in use until it was replaced.
func TestUses_Wrote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWatch(t)
		r.uses.Wrote(oldKey)
		r.book.set(true, "")
		time.Sleep(time.Minute)
		require.Equal(t, status.Critical, r.alarms()[0].Severity)
	})
}

// Made-up versions leave no trace, and there is a bound for all others.
func TestUses_Bounded(t *testing.T) {
	uses := NewUses(nil)
	uses.Seed(keyvault.SeedEvent{Op: keyvault.OpDecrypt, Key: oldKey, Err: &keyvault.Error{Reason: keyvault.BadCiphertext}})
	require.Empty(t, uses.snapshot())
	for i := range 60 {
		uses.Seed(keyvault.SeedEvent{Op: keyvault.OpDecrypt, Key: oldKey.WithVersion(fmt.Sprintf("%032x", i)), Err: &keyvault.Error{Reason: keyvault.KeyNotFound}})
	}
	require.Len(t, uses.snapshot(), maxUnproven)
	for i := range 1000 {
		v := []byte("00000000000000000000000000000000")
		copy(v, []byte{byte('a' + i%26), byte('a' + i/26%26), byte('a' + i/676)})
		uses.Seed(keyvault.SeedEvent{Op: keyvault.OpDecrypt, Key: oldKey.WithVersion(string(v)), Time: time.Unix(int64(i), 0)})
	}
	list := uses.snapshot()
	require.Len(t, list, maxUses)
	require.Equal(t, time.Unix(999, 0), list[0].last, "the latest are kept")
}

// TestUse_Rules holds the alarm of an old version against its history.
func TestUse_Rules(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		u := use{key: oldKey}
		now := begin
		var lastUse, needed time.Time
		bad, byState := false, false
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, time.Minute, 13 * time.Hour, 10 * 24 * time.Hour}).Draw(t, "wait"))
			reason := rapid.SampledFrom(keyvault.Reasons()).Draw(t, "reason")
			var err *keyvault.Error
			if reason != keyvault.Success {
				err = &keyvault.Error{Op: keyvault.OpDecrypt, Key: oldKey, Reason: reason, Text: "drawn"}
			}
			state := reason.Kind() == keyvault.KindKeyState
			switch rapid.SampledFrom([]string{"decrypt", "encrypt", "look"}).Draw(t, "what") {
			case "decrypt":
				u.asked(keyvault.SeedEvent{Op: keyvault.OpDecrypt, Key: oldKey, Err: err, Time: now})
				switch {
				case err == nil:
					lastUse, needed, bad = now, time.Time{}, false
				case state, reason == keyvault.AccessDenied, reason == keyvault.OperationNotPermitted:
					needed, bad, byState = now, true, state
				}
			case "encrypt":
				u.asked(keyvault.SeedEvent{Op: keyvault.OpEncrypt, Key: oldKey, Err: err, Time: now})
				if err == nil {
					lastUse = now
				}
			case "look":
				enabled := rapid.Bool().Draw(t, "enabled")
				u.looked(keyvault.Attributes{Key: oldKey, Enabled: enabled}, err, now)
				switch {
				case err == nil && enabled:
					if bad && byState {
						bad, needed = false, time.Time{}
					}
				case err == nil, state:
					bad, byState = true, true
				}
			}
			want := status.Severity("")
			switch {
			case !bad:
			case now.Sub(latest(lastUse, needed)) <= 24*time.Hour:
				want = status.Critical
			case now.Sub(latest(lastUse, needed)) <= 30*24*time.Hour:
				want = status.Warning
			}
			got, on := u.alarm(now)
			require.Equal(t, want, got)
			require.Equal(t, want != "", on)
			if on {
				require.NotEmpty(t, u.unreadable(got))
				require.False(t, u.badSince.After(now))
			}
		}
	})
}

func TestFacts_OrderOfAlarms(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ends := now.Add(29 * 24 * time.Hour)
	f := facts{
		now: now, view: View{Key: newKey, Phase: Usable}, expires: now.Add(30 * 24 * time.Hour), signIn: status.Credentials{ExpiryTime: &ends, Fault: "half a file"},
		uses: []use{{key: oldKey, last: now, bad: &keyvault.Error{Reason: keyvault.KeyDisabled, Text: "disabled"}}},
	}
	var reasons []string
	for _, a := range f.alarms() {
		reasons = append(reasons, a.Reason)
	}
	require.Equal(t, []string{"KeyDisabled", "KeyExpiresSoon", "CredentialExpiresSoon", "CredentialFileUnusable"}, reasons)
	f.expires, f.uses = now.Add(31*24*time.Hour), nil
	require.False(t, slices.ContainsFunc(f.alarms(), func(a status.Alarm) bool { return a.Reason == "KeyExpiresSoon" }))
	f.expires = now
	require.False(t, slices.ContainsFunc(f.alarms(), func(a status.Alarm) bool { return a.Reason == "KeyExpiresSoon" }), "it has: another alarm says so")
}

// The fullest state file is one that the next process still reads.
func TestMemory_Full(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	m := OpenMemory(path, newKey, nil)
	var s seeds
	for i := range 2 * maxSeeds {
		s.keep(sha256.Sum256([]byte{byte(i), byte(i >> 8)}))
	}
	uses := NewUses(nil)
	for i := range 2 * maxUses {
		uses.Wrote(keyvault.Ref{Host: strings.Repeat("h", 60) + ".vault.azure.net", Name: strings.Repeat("n", 127), Version: fmt.Sprintf("%032x", i)})
	}
	for i := range 2 * maxVersions {
		m.KeepVersion(newKey.WithVersion(fmt.Sprintf("%032x", i)), time.Now())
	}
	var failed state
	for _, r := range keyvault.Reasons()[1:] {
		failed.observe(keyvault.Outcome{Op: keyvault.OpDecrypt, Err: &keyvault.Error{Reason: r}, Time: time.Now()})
	}
	m.save(newKey, newCanary(make([]byte, 32), make([]byte, 512)), failed, s.bytes(), uses.snapshot())

	next := OpenMemory(path, newKey, nil)
	require.Len(t, next.usesOf(time.Now()), maxUses)
	var again seeds
	again.load(next.seedPrints())
	require.Equal(t, s.order, again.order)
	require.NotNil(t, next.canary(newKey))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(maxMemory/2), "with room for what is to come")
}
