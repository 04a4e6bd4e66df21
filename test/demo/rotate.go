package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"azure-kms-plugin/test/stack"
	"azure-kms-plugin/test/vault"
)

// The pace of the demo. In production it is three minutes and one.
const (
	activationDelay = 12 * time.Second
	pollInterval    = 2 * time.Second
)

// clockError is how well a plugin knows the vault's clock, which tells seconds.
const clockError = 2 * time.Second

// statusAge is how old a good Status is when an API server whose /readyz is
// probed asks for the next one.
const statusAge = 20 * time.Second

// canary is a secret beside the others: it is rewritten until the API server has
// the new key, so that none of the others is. It is counted with them.
const canary = "canary"

// rotateKey makes a new version of the key in the vault and tells what the
// plugin does about it, as its log says.
func rotateKey(ctx context.Context, s *scene) error {
	t := s.term
	if err := s.store.Create(ctx, namedSecret(canary)); err != nil {
		return fmt.Errorf("writing %s: %w", canary, err)
	}
	s.vault.ResetCalls()
	began := time.Now()
	var err error
	if s.next, err = s.vault.Vault(vaultName).CreateKey(keyName, vault.KeyOptions{Bits: 2048}); err != nil {
		return fmt.Errorf("rotating the key: %w", err)
	}
	t.item("rotated", "the newest version is %s; the plugin is not told", s.next)
	t.item("pace", "a look every %v, a switch %v after creation; in production 1 min and 3 min", pollInterval, activationDelay)
	t.item("", "the vault tells both in whole seconds, so it may be up to two earlier")
	after := func(e event) string { return fmt.Sprintf("after %.1f s", e.Time.Sub(began).Seconds()) }

	learned, err := s.await(ctx, msgLearned, nil)
	if err != nil {
		return err
	}
	t.item("learned", "%s: what is under it can be read from now on", after(learned))
	verified, err := s.await(ctx, msgVerified, nil)
	if err != nil {
		return err
	}
	t.item("verified", "%s: a round trip under it, encrypt and decrypt", after(verified))

	left := t.clock("writes with it", "in about %v", time.Until(learned.WritesFrom))
	adopted, err := s.await(ctx, msgChanged, left.tick)
	left.end()
	if err != nil {
		return err
	}
	switch {
	case adopted.From != stack.KeyID(vaultName, keyName, s.version) || adopted.To != stack.KeyID(vaultName, keyName, s.next):
		return errors.New("the plugin went from or to a key ID that is not that of the version")
	case adopted.Time.Before(learned.WritesFrom.Add(-clockError)):
		return errors.New("the plugin switched before the time that it had told")
	}
	t.item("adopted", "%s: Status and Encrypt are under the new key ID", after(adopted))
	t.item("from", "%s", adopted.From)
	t.item("to", "%s", adopted.To)
	s.switched = adopted.Time
	return nil
}

// waitForAPIServer waits until the encryption stack has found the new key ID by
// its own Status calls, and made a seed under it.
func waitForAPIServer(ctx context.Context, s *scene) error {
	t := s.term
	t.item("kubernetes", "is not told either: it asks for Status when its last answer is %v old", statusAge)
	wait := t.clock("asks again", "within %v", statusAge-time.Since(s.switched))
	defer wait.end()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		// A value that is not under the current key is written also without a change.
		if err := s.store.Rewrite(ctx, namespace, canary); err != nil {
			return fmt.Errorf("rewriting %s: %w", canary, err)
		}
		stored, err := s.stored(ctx, canary)
		if err != nil {
			return err
		}
		if stored.KeyID == stack.KeyID(vaultName, keyName, s.next) {
			break
		}
		if time.Since(s.switched) > 2*statusAge {
			return fmt.Errorf("the API server still writes with the old key %v after the switch", 2*statusAge)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.plugin.Done():
			return s.plugin.Failed()
		case <-tick.C:
			wait.tick()
		}
	}
	wait.end()
	t.good("the API server writes under the new key, %.1f s after the switch", time.Since(s.switched).Seconds())
	return s.tellVersions(ctx, s.opts.secrets, 1, ": the canary, which was rewritten until then")
}

// rewriteSecrets is a storage migration: each secret is read and updated without
// a change.
func rewriteSecrets(ctx context.Context, s *scene) error {
	s.vault.ResetCalls()
	began := time.Now()
	if err := s.each(ctx, "rewriting", func(ctx context.Context, i int) error {
		if err := s.store.Rewrite(ctx, namespace, secretName(i)); err != nil {
			return fmt.Errorf("rewriting %s: %w", secretName(i), err)
		}
		return nil
	}); err != nil {
		return err
	}
	s.term.good("%s rewritten in %v", thousands(s.opts.secrets), time.Since(began).Round(time.Millisecond))
	if err := s.tellVersions(ctx, 0, s.opts.secrets+1, ", with the canary"); err != nil {
		return err
	}
	return s.tellCalls()
}

// retireVersion takes the old version away, and with it all that was read before.
func retireVersion(ctx context.Context, s *scene) error {
	if err := s.vault.Vault(vaultName).SetEnabled(keyName, s.version, false); err != nil {
		return fmt.Errorf("disabling the old version: %w", err)
	}
	s.term.item("disabled", "version %s", s.version)
	return restartAll(ctx, s)
}

// stored is a secret as it lies in etcd.
func (s *scene) stored(ctx context.Context, name string) (stack.Stored, error) {
	key, value, _, err := s.store.Raw(ctx, namespace, name)
	if err != nil {
		return stack.Stored{}, err
	}
	stored, err := stack.ParseStored(value)
	if err != nil {
		return stored, fmt.Errorf("reading %s: %w", key, err)
	}
	return stored, nil
}
