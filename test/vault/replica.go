package vault

import (
	"errors"
	"sync/atomic"
	"time"
)

// Replication says how the replicas of a vault come to know a new version. The
// regions of a Managed HSM lag by minutes; two replicas of any vault may
// disagree for a moment. Both times run on the vault's clock, from when a
// version came to be, whatever its creation date says.
type Replication struct {
	// Lag is how long a new version is unknown here: calls that name it get 404,
	// lists leave it out, and without Alternate the version before it is the
	// current one. A key without a known version is not found.
	Lag time.Duration
	// Alternate is how long two replicas take turns to say which version is the
	// current one and which there are: the one that knows the new version comes
	// first, then the one that does not. Calls that name a version do not mind.
	Alternate time.Duration
}

// SetReplication makes the versions that come to be from now on known late. The
// zero Replication makes every version known, at once.
func (v *Vault) SetReplication(r Replication) error {
	if r.Lag < 0 || r.Alternate < 0 {
		return errors.New("a lag and the time of alternation are not negative")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replication = r
	return nil
}

// SetClockSkew makes the vault's clock differ from the emulator's: its Date
// header, its key attributes and whether a key is valid. Tokens go by the
// emulator's clock.
func (v *Vault) SetClockSkew(d time.Duration) { v.skew.Store(int64(d)) }

// now is the vault's clock.
func (v *Vault) now() time.Time { return v.srv.now().Add(time.Duration(v.skew.Load())) }

// lags reports whether a version that came to be under SetReplication is
// younger than d; v.mu is held.
func (v *Vault) lags(ver *version, d time.Duration) bool {
	return v.replication != Replication{} && !ver.came.IsZero() && v.now().Before(ver.came.Add(d))
}

// seen are the versions of a live key that the replica knows which answers a
// list or a call that names no version; v.mu is held.
func (v *Vault) seen(k *key, turns *atomic.Uint64) []*version {
	known, settled := k.versions, k.versions
	for i, ver := range k.versions {
		if v.lags(ver, v.replication.Lag) {
			known = k.versions[:i]
			break
		}
	}
	for i, ver := range k.versions {
		if v.lags(ver, v.replication.Alternate) {
			settled = k.versions[:i]
			break
		}
	}
	switch {
	case len(settled) == len(k.versions):
		return known
	case turns.Add(1)%2 == 1:
		return k.versions
	}
	return settled
}

// look returns a version as a reader finds it, the current one for an empty ID.
func (v *Vault) look(name, id string) *version {
	v.mu.RLock()
	defer v.mu.RUnlock()
	k := v.live(name)
	if k == nil {
		return nil
	}
	if id == "" {
		if versions := v.seen(k, &k.gets); len(versions) > 0 {
			return versions[len(versions)-1]
		}
		return nil
	}
	for _, ver := range k.versions {
		if ver.id == id && !v.lags(ver, v.replication.Lag) {
			return ver
		}
	}
	return nil
}
