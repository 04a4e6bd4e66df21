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
	stop   func()

	told, held string // what a connection keeps
}

func (r *replica) start(t testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := keyvault.FollowConfig{
		KeyringConfig: keyvault.KeyringConfig{
			Vault: r.way, Directory: r.way, Write: key0,
			OnEvent: func(e keyvault.RotationEvent) { r.events = append(r.events, e) },
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
