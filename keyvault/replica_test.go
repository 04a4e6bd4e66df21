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
	r.build(t)
	r.run()
}

// build makes the keyring, which knows no more then than its memory.
func (r *replica) build(t testing.TB) {
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
}

func (r *replica) run() {
	ctx, cancel := context.WithCancel(context.Background())
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

// heals ends all faults, and expects that version to write within d.
func (r *replica) heals(t testing.TB, d time.Duration, version *modelVersion) {
	t.Helper()
	r.way.setFail("")
	rest(d)
	require.Equal(t, id(version), r.keys.KeyID(""))
}
