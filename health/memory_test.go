package health_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

func TestMemory_File(t *testing.T) {
	for _, umask := range []int{0, 0o777} {
		synctest.Test(t, func(t *testing.T) { testMemoryFile(t, umask) })
	}
}

func testMemoryFile(t *testing.T, umask int) {
	path := filepath.Join(t.TempDir(), "k.state")
	require.NoError(t, os.WriteFile(path+".new", []byte("left by a crash"), 0o644))
	old := syscall.Umask(umask)
	defer syscall.Umask(old)
	start(t, &fakeVault{}, health.Graces{}, path)
	time.Sleep(time.Second)
	synctest.Wait()

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.NoFileExists(t, path+".new")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var got struct {
		Format      int
		Key         string
		LastSuccess time.Time
		Canary      struct {
			Ciphertext      []byte
			PlaintextSHA256 string
		}
	}
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, 1, got.Format)
	require.Equal(t, key.URL(), got.Key)
	require.WithinDuration(t, time.Now(), got.LastSuccess, 2*time.Second)
	require.Len(t, got.Canary.Ciphertext, 32)
	require.Len(t, got.Canary.PlaintextSHA256, 64)
}

// Whatever is at the path, the program runs on and says so once.
func TestMemory_Tolerant(t *testing.T) {
	for _, tc := range []struct {
		name  string
		make  func(t *testing.T, path string)
		warns int // at the start and at the first write
	}{
		{"nothing", func(*testing.T, string) {}, 0},
		{"empty", func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, nil, 0o600)) }, 1},
		{"not JSON", func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, []byte("{SECRET"), 0o600)) }, 1},
		{"null", func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, []byte("null"), 0o600)) }, 1},
		{"another format", func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, []byte(`{"format":99}`), 0o600)) }, 1},
		{"too large", func(t *testing.T, p string) {
			require.NoError(t, os.WriteFile(p, []byte(strings.Repeat(" ", 1<<20)), 0o600))
		}, 1},
		{"a fifo", func(t *testing.T, p string) { require.NoError(t, syscall.Mkfifo(p, 0o600)) }, 1},
		{"a link", func(t *testing.T, p string) { require.NoError(t, os.Symlink("/etc/passwd", p)) }, 1},
		{"a directory", func(t *testing.T, p string) { require.NoError(t, os.MkdirAll(filepath.Join(p, "x"), 0o700)) }, 2},
		{"no such directory", func(t *testing.T, p string) { require.NoError(t, os.Remove(filepath.Dir(p))) }, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "d", "k.state")
				require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
				tc.make(t, path)
				r := start(t, &fakeVault{}, health.Graces{}, path)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				require.Equal(t, health.Usable, r.tracker.View().Phase)
				warnings := r.logs.FilterLevelExact(zap.WarnLevel).All()
				require.Len(t, warnings, tc.warns)
				for _, w := range warnings {
					require.NotContains(t, w.ContextMap()["error"], "SECRET")
				}
			})
		})
	}
}

func TestMemory_TrustsOnlyWhatItShould(t *testing.T) {
	other := key.WithVersion("ffffffffffffffffffffffffffffffff")
	for _, tc := range []struct {
		name string
		key  keyvault.Ref
		age  time.Duration
		ok   bool
	}{
		{"fresh", key, time.Hour, true},
		{"of another version", other, time.Hour, false},
		{"older than the grace", key, 25 * time.Hour, false},
		{"a clock a little ahead", key, -30 * time.Second, true},
		{"from the future", key, -time.Hour, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "k.state")
				data, err := json.Marshal(map[string]any{"format": 1, "key": tc.key.URL(), "lastSuccess": time.Now().Add(-tc.age)})
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(path, data, 0o600))
				tr := health.NewTracker(health.Config{Key: key, Memory: health.OpenMemory(path, key, nil)})
				begin := time.Now()
				err = tr.Ready(t.Context())
				if tc.ok {
					require.NoError(t, err)
					require.Zero(t, time.Since(begin))
				} else {
					require.Error(t, err)
					require.Equal(t, 2500*time.Millisecond, time.Since(begin))
				}
			})
		})
	}
}

func TestMemoryPath(t *testing.T) {
	a := health.MemoryPath("/opt", "unix:///opt/azurekms.socket", key)
	require.Equal(t, "/opt", filepath.Dir(a))
	require.Contains(t, filepath.Base(a), "azurekms.socket.")
	require.Equal(t, a, health.MemoryPath("/opt", "unix:///opt/azurekms.socket", key.WithVersion("ffffffffffffffffffffffffffffffff")),
		"one memory for all versions of a key")
	require.NotEqual(t, a, health.MemoryPath("/opt", "unix:///run/azurekms.socket", key), "two sockets may share a directory")
	other := key
	other.Name = "k2"
	require.NotEqual(t, a, health.MemoryPath("/opt", "unix:///opt/azurekms.socket", other))
	require.NotContains(t, health.MemoryPath("/s", "unix:///@kms", key), "@")
}

// A failure that only an earlier process met keeps its grace running, but what
// this one meets is what is shown: the cause may be another by now.
func TestMemory_ShowsWhatIsMetNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.state")
		data, err := json.Marshal(map[string]any{
			"format": 1, "key": key.URL(), "lastSuccess": time.Now().Add(-time.Hour),
			"failures": []any{map[string]any{"reason": keyvault.CredentialsRefused, "first": time.Now().Add(-time.Minute)}},
		})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, 0o600))
		tr := health.NewTracker(health.Config{Key: key, Memory: health.OpenMemory(path, key, nil)})
		require.Equal(t, keyvault.CredentialsRefused, tr.View().Err.Reason)

		tr.Observe(outcome(keyvault.OpDecrypt, keyvault.Unreachable))
		v := tr.View()
		require.Equal(t, health.Degraded, v.Phase)
		require.Equal(t, keyvault.Unreachable, v.Err.Reason)

		time.Sleep(9*time.Minute + time.Second)
		v = tr.View()
		require.Equal(t, health.Lost, v.Phase, "a fault in between does not reset the grace of a refusal")
		require.Equal(t, keyvault.CredentialsRefused, v.Err.Reason)
	})
}
