package keyvault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// DefaultPollInterval is how often the newest version is asked for.
	DefaultPollInterval = time.Minute
	// DefaultActivationDelay and DefaultHSMActivationDelay are how long after its
	// creation a version begins to write. The regions of a Managed HSM lag by up to
	// six minutes. Source: Managed HSM multi-region replication.
	DefaultActivationDelay    = 3 * time.Minute
	DefaultHSMActivationDelay = 15 * time.Minute
)

// A Vault does the operations that a keyring needs; *Client is one. Its errors
// must be *Error.
type Vault interface {
	Encrypt(ctx context.Context, ref Ref, plaintext []byte) ([]byte, error)
	Decrypt(ctx context.Context, ref Ref, block []byte) ([]byte, error)
	Versions(ctx context.Context, ref Ref) ([]Attributes, error)
}

// A Directory tells about a key; of a Ref without a version, about the newest.
// *Client is one. Its errors must be *Error.
type Directory interface {
	Get(ctx context.Context, ref Ref) (Attributes, error)
}

// A VersionMemory keeps, beyond the end of the process, the versions under which
// an Encrypt was answered.
type VersionMemory interface {
	// LastVersion returns the one that was kept last, or a Ref without a version.
	LastVersion() (ref Ref, created time.Time)
	// KeepVersion returns when it is kept. What keeps it from that it deals with itself.
	KeepVersion(ref Ref, created time.Time)
}

// A KeyringConfig names the keys of a keyring.
type KeyringConfig struct {
	// Vault is required.
	Vault Vault
	// Write is the version that encrypts, or the key whose newest version does.
	Write Ref
	// Others are further keys or versions that may decrypt.
	Others []Ref
	// Directory tells of newer versions. A pinned keyring only reports those, and
	// does without if it is nil.
	Directory Directory
	// Memory is optional.
	Memory VersionMemory
	// OnEvent is told what happens to versions, OnPoll of each look at the newest
	// one, and of a failed listing that a start waits for. They must not block.
	// Optional.
	OnEvent func(RotationEvent)
	OnPoll  func(Attributes, *Error)
	// OnSeed is told of each seed that was to be wrapped or unwrapped under a version
	// that is known or was looked for. It must not block. Optional.
	OnSeed func(SeedEvent)
	// Warn is told, at most once a minute, what keeps the keyring from finding
	// a version. nil drops it. It must not block.
	Warn func(*Error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// A FollowConfig says how to follow.
type FollowConfig struct {
	// KeyringConfig has a Directory, and a Write without a version.
	KeyringConfig
	// PollInterval is at most half the ActivationDelay. Zero means the defaults.
	PollInterval    time.Duration
	ActivationDelay time.Duration
}

// check reports every fault but that of Write's version.
func (c *KeyringConfig) check() (faults []error) {
	if c.Vault == nil {
		faults = append(faults, errors.New("a vault is required"))
	}
	for _, r := range append([]Ref{c.Write}, c.Others...) {
		if err := r.Validate(); err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}

// check applies the defaults and reports every fault.
func (c *FollowConfig) check() error {
	faults := c.KeyringConfig.check()
	if c.Directory == nil {
		faults = append(faults, errors.New("a directory is required"))
	}
	if c.Write.Version != "" {
		faults = append(faults, fmt.Errorf("%s has a version, and nothing to follow", c.Write))
	}
	if err := CheckPace(c.Write, &c.PollInterval, &c.ActivationDelay); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// CheckPace puts the defaults for a key in the place of zeros, and says what is
// wrong with the others.
func CheckPace(key Ref, poll, delay *time.Duration) error {
	if *delay == 0 {
		*delay = DefaultActivationDelay
		if key.IsHSM() {
			*delay = DefaultHSMActivationDelay
		}
	}
	if *poll == 0 {
		*poll = min(DefaultPollInterval, *delay/2)
	}
	switch {
	case *poll < time.Second:
		return fmt.Errorf("the poll interval of %v is less than a second", *poll)
	case *poll > *delay/2:
		return fmt.Errorf("the poll interval of %v is more than half the activation delay of %v: a new version might be learned too late to be checked before it writes", *poll, *delay)
	}
	return nil
}
