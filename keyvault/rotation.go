package keyvault

import "time"

// A RotationStep is what has happened to a version. The list is closed.
type RotationStep string

// The steps of a rotation, and what can hold it up.
const (
	VersionLearned   RotationStep = "learned"   // it decrypts from now on
	VersionVerified  RotationStep = "verified"  // a round trip has succeeded
	VersionAdopted   RotationStep = "adopted"   // it writes from now on
	VersionWaiting   RotationStep = "waiting"   // it cannot be adopted: see Err
	VersionAvailable RotationStep = "available" // it is the newest, and another one is pinned
)

// A Cause says why a version was adopted. The list is closed.
type AdoptCause string

// The causes.
const (
	AdoptedAtStart    AdoptCause = "start"    // no version was remembered
	AdoptedByRotation AdoptCause = "rotation" // its time had come
)

// A RotationEvent is one step of one version.
type RotationEvent struct {
	Step RotationStep
	Key  Ref
	// From wrote before; set with VersionAdopted, without a version at a start.
	From  Ref
	Cause AdoptCause // set with VersionAdopted
	// Due is when it may begin to write, by the vault's clock.
	Due time.Time
	// Proven is when a round trip under it has last succeeded, by this machine's
	// clock; zero for never.
	Proven time.Time
	// Settled is when every server of the vault must know the version, by this machine's
	// clock: until then a 404 may come from one that lags.
	Settled time.Time
	Err     *Error
}
