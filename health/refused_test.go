package health_test

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

// The canary decrypts all the while; only the permission to encrypt is gone.
func TestProber_EncryptRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		v.set(func(v *fakeVault) { v.fail = always(keyvault.AccessDenied, keyvault.OpEncrypt) })
		r.tracker.Observe(outcome(keyvault.OpEncrypt, keyvault.AccessDenied))
		for range 60 {
			time.Sleep(time.Minute)
			synctest.Wait()
			require.NoError(t, r.tracker.Ready(t.Context()))
			require.Equal(t, keyvault.AccessDenied, reasonOf(t, r.tracker.Usable(t.Context())))
		}
		require.Less(t, len(v.times), 170, "two calls a minute, and a little")
		v.set(func(v *fakeVault) { v.fail = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		require.NoError(t, r.tracker.Usable(t.Context()))
		require.Equal(t, health.Usable, r.tracker.View().Phase)
	})
}

// An identity that had lost everything and has it back is good within a minute.
func TestProber_AllRefusedAndMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(10 * time.Minute)
		v.set(func(v *fakeVault) { v.fail = always(keyvault.AccessDenied) })
		r.tracker.Observe(outcome(keyvault.OpEncrypt, keyvault.AccessDenied))
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		require.Equal(t, health.Lost, r.tracker.View().Phase)
		v.set(func(v *fakeVault) { v.fail = nil })
		time.Sleep(34 * time.Second)
		synctest.Wait()
		require.Equal(t, health.Usable, r.tracker.View().Phase)
	})
}

// A restart does not hide it either, and does not make a loss of it.
func TestMemory_EncryptRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.state")
		first := start(t, &fakeVault{}, health.Graces{}, path)
		time.Sleep(time.Minute)
		first.tracker.Observe(outcome(keyvault.OpEncrypt, keyvault.OperationNotPermitted))
		first.vault.set(func(v *fakeVault) { v.fail = always(keyvault.OperationNotPermitted, keyvault.OpEncrypt) })
		time.Sleep(time.Hour)
		synctest.Wait()
		tr := health.NewTracker(health.Config{Key: key, Memory: health.OpenMemory(path, key, nil)})
		require.NoError(t, tr.Ready(t.Context()))
		require.Equal(t, health.Degraded, tr.View().Phase)
		require.Equal(t, keyvault.OperationNotPermitted, tr.View().Err.Reason)
		tr.Observe(outcome(keyvault.OpDecrypt, ""))
		require.Equal(t, health.Degraded, tr.View().Phase)
	})
}

// A stop amid a try to encrypt does not cost the canary, which could not be
// made anew.
func TestProber_StopKeepsCanary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.state")
		v := &fakeVault{}
		m := health.OpenMemory(path, key, nil)
		tr := health.NewTracker(health.Config{Key: key, Memory: m})
		p := health.NewProber(health.ProberConfig{Vault: v, Tracker: tr, Memory: m})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Second)
		tr.Observe(outcome(keyvault.OpEncrypt, keyvault.AccessDenied))
		v.set(func(v *fakeVault) { v.took = time.Hour })
		time.Sleep(40 * time.Second)
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, 2, v.calls[keyvault.OpEncrypt], "stopped amid the second")

		r := start(t, &fakeVault{fail: always(keyvault.AccessDenied, keyvault.OpEncrypt)}, health.Graces{}, path)
		synctest.Wait()
		require.Zero(t, r.vault.calls[keyvault.OpEncrypt])
		require.Equal(t, 1, r.vault.calls[keyvault.OpDecrypt])
	})
}
