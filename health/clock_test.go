package health_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

// remember makes a tracker from a state file with these times.
func remember(t *testing.T, success, failure time.Time) *health.Tracker {
	path := filepath.Join(t.TempDir(), "k.state")
	rec := map[string]any{"format": 1, "key": key.URL(), "lastSuccess": success}
	if !failure.IsZero() {
		rec["failures"] = []any{map[string]any{"reason": keyvault.Unreachable, "first": failure}}
	}
	data, err := json.Marshal(rec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return health.NewTracker(health.Config{Key: key, Memory: health.OpenMemory(path, key, nil)})
}

// Times of the process before are compared with those of this one. Without a
// monotonic part they would be compared by the wall clock, and one that is set
// back would make all new evidence older than the old.
func TestMemory_MonotonicTimes(t *testing.T) {
	now := time.Now()
	require.Contains(t, now.String(), " m=")
	for name, offset := range map[string]time.Duration{"past": -time.Hour, "a little ahead": 30 * time.Second} {
		v := remember(t, now.Add(offset), now.Add(offset)).View()
		require.Contains(t, v.LastSuccess.String(), " m=", name)
		require.Contains(t, v.Since.String(), " m=", name)
		require.WithinDuration(t, now.Add(min(offset, 0)), v.LastSuccess, 2*time.Second, name)
	}
}

// The clock was set back between two processes.
func TestMemory_TimesFromTheFuture(t *testing.T) {
	for _, ahead := range []time.Duration{time.Second, 50 * time.Second, 5 * time.Hour, 100 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			now := time.Now()
			tr := remember(t, now.Add(ahead), now.Add(ahead))
			tr.Observe(outcome(keyvault.OpDecrypt, ""))
			require.Equal(t, health.Usable, tr.View().Phase)
			tr.Observe(outcome(keyvault.OpDecrypt, keyvault.KeyDisabled))
			require.Equal(t, health.Degraded, tr.View().Phase)
			time.Sleep(16 * time.Second)
			require.Equal(t, health.Lost, tr.View().Phase)

			tr = remember(t, time.Time{}, now.Add(ahead))
			time.Sleep(24 * time.Hour)
			require.Equal(t, health.Lost, tr.View().Phase, "a failure is borne from now on at the latest")
		})
	}
}
