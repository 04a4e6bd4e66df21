package health

import (
	"sync"
	"time"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// Rotations is how far the latest change of the version that writes has come, as the
// keyring tells it. The zero value knows of none. Its methods may be called from many
// goroutines.
type Rotations struct {
	mu     sync.Mutex
	last   *status.Rotation
	looked time.Time
}

// Event takes in one step.
func (r *Rotations) Event(e keyvault.RotationEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	next := status.Rotation{To: e.Key.Version, StartedTime: when(now), DueTime: when(e.Due)}
	if r.last != nil && r.last.To == e.Key.Version {
		next.From, next.StartedTime = r.last.From, r.last.StartedTime
	}
	switch e.Step {
	case keyvault.VersionLearned, keyvault.VersionVerified:
		next.State = status.RotationPending
	case keyvault.VersionWaiting:
		next.State = status.RotationWaiting
	case keyvault.VersionAvailable:
		next.State, next.DueTime = status.RotationPinned, nil
	case keyvault.VersionAdopted:
		if e.From.Version == "" {
			return // a start is no rotation
		}
		next.State, next.CompletionTime = status.RotationAdopted, when(now)
		next.From = e.From.Version
	}
	r.last = &next
}

// Looked notes that the newest version was seen.
func (r *Rotations) Looked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked = time.Now()
}

func (r *Rotations) latest() *status.Rotation {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return nil
	}
	copied := *r.last
	return &copied
}

// LastLook is when the newest version was last seen; zero for never.
func (r *Rotations) LastLook() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.looked
}
