package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"azure-kms-plugin/test/stack"
)

// showStored shows what a thief of etcd's disk would see of one secret.
func showStored(ctx context.Context, s *scene) error {
	i := s.opts.secrets / 2
	key, value, revision, err := s.store.Raw(ctx, namespace, secretName(i))
	if err != nil {
		return err
	}
	stored, err := stack.ParseStored(value)
	if err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	t := s.term
	t.item("etcd key", "%s, %d bytes, revision %d", key, len(value), revision)
	t.item("prefix", "%s%s:", stack.Prefix, stored.Provider)
	t.item("key ID", "%s", stored.KeyID)
	t.item("", "= SHA-256 of https://%s.vault.azure.net/keys/%s/%s", vaultName, keyName, s.version)
	for n, name := range slices.Sorted(maps.Keys(stored.Annotations)) {
		title := ""
		if n == 0 {
			title = "annotations"
		}
		t.item(title, "%s: %s", name, stored.Annotations[name])
	}
	t.item("seed", "%d bytes, wrapped by the vault; one for all that this process writes", len(stored.Seed))
	t.item("data", "%d bytes, AES-GCM under a key derived from the seed for this secret alone", len(stored.Data))
	lines := strings.Split(strings.TrimSpace(hex.Dump(stored.Data[:min(len(stored.Data), 64)])), "\n")
	for _, line := range lines {
		t.item("", "%s", t.faint(line))
	}

	switch {
	case stored.KeyID != stack.KeyID(vaultName, keyName, s.version):
		return errors.New("the key ID in etcd is not that of the key version")
	case bytes.Contains(value, demoSecret(i).Data["password"]):
		return fmt.Errorf("%s holds its plaintext", key)
	}
	t.good("the password is nowhere in it")
	return nil
}
