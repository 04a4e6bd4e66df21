package vault

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// change replaces a version (the current one for an empty ID) by a changed copy.
func (v *Vault) change(name, id string, do func(*version)) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	k := v.keys[strings.ToLower(name)]
	if k != nil {
		for i, ver := range slices.Backward(k.versions) {
			if ver.id == strings.ToLower(id) || id == "" {
				next := *ver
				do(&next)
				next.updated = v.now().Truncate(time.Second)
				k.versions[i] = &next
				return nil
			}
		}
	}
	return fmt.Errorf("%s: no such key", v.KeyURL(name, id))
}

// SetEnabled switches a version on or off; an empty version is the current one, here as below.
func (v *Vault) SetEnabled(name, id string, enabled bool) error {
	return v.change(name, id, func(ver *version) { ver.enabled = enabled })
}

// SetExpires sets exp; a zero time removes it.
func (v *Vault) SetExpires(name, id string, t time.Time) error {
	return v.change(name, id, func(ver *version) { ver.exp = t.Truncate(time.Second) })
}

// SetNotBefore sets nbf; a zero time removes it.
func (v *Vault) SetNotBefore(name, id string, t time.Time) error {
	return v.change(name, id, func(ver *version) { ver.nbf = t.Truncate(time.Second) })
}

// SetKeyOps sets key_ops.
func (v *Vault) SetKeyOps(name, id string, ops ...string) error {
	for _, op := range ops {
		if !slices.Contains(allKeyOps, op) {
			return fmt.Errorf("%q is not a key operation: one of %s", op, strings.Join(allKeyOps, ", "))
		}
	}
	return v.change(name, id, func(ver *version) { ver.ops = slices.Clone(ops) })
}

// DeleteKey soft-deletes a key with all its versions.
func (v *Vault) DeleteKey(name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.live(name) == nil {
		return fmt.Errorf("%s: no such key", v.KeyURL(name, ""))
	}
	v.softDelete(v.live(name))
	return nil
}

// softDelete deletes k; v.mu is held.
func (v *Vault) softDelete(k *key) {
	now := v.now()
	delay := v.srv.cfg.DeleteDelay
	if v.hsm {
		delay = 0
	}
	at := now.Truncate(time.Second)
	k.deletion = &deletion{at: at, visible: now.Add(delay), purge: at.AddDate(0, 0, v.srv.cfg.RecoverableDays)}
}

// RecoverKey brings a soft-deleted key back at once, even one that is not
// shown as deleted yet.
func (v *Vault) RecoverKey(name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	k := v.keys[strings.ToLower(name)]
	if k == nil || k.deletion == nil {
		return fmt.Errorf("%s: not deleted", v.KeyURL(name, ""))
	}
	k.deletion = nil
	return nil
}

// PurgeKey removes a key for good, deleted or not.
func (v *Vault) PurgeKey(name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.keys[strings.ToLower(name)] == nil {
		return fmt.Errorf("%s: no such key", v.KeyURL(name, ""))
	}
	delete(v.keys, strings.ToLower(name))
	return nil
}
