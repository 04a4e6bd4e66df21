package health

import (
	"fmt"
	"time"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// The reasons of conditions that are as they should be, or not known. All others are
// those of keyvault.Reasons and of RotationStates.
const (
	reasonAvailable  = "Available"
	reasonAccepted   = "Accepted"
	reasonReady      = "Ready"
	reasonAsExpected = "AsExpected"
	reasonNewest     = "NewestVersion"
	reasonStarting   = "Starting"
	reasonUnseen     = "NewestVersionUnknown"
)

// The reasons of alarms that are not failures.
const (
	reasonExpiresSoon           = "KeyExpiresSoon"
	reasonCredentialExpiresSoon = "CredentialExpiresSoon"
	reasonCredentialUnusable    = "CredentialFileUnusable"
)

// ConditionReasons lists every reason that a condition can have.
func ConditionReasons() (all []string) {
	for _, r := range keyvault.Reasons() {
		if r != keyvault.Success && r.Kind() != keyvault.KindCaller {
			all = append(all, string(r))
		}
	}
	for _, s := range []status.RotationState{status.RotationPending, status.RotationWaiting, status.RotationPinned} {
		all = append(all, string(s))
	}
	return append(all, reasonAvailable, reasonAccepted, reasonReady, reasonAsExpected, reasonNewest, reasonStarting,
		reasonUnseen, reasonExpiresSoon, reasonCredentialExpiresSoon, reasonCredentialUnusable)
}

// facts are what conditions and alarms are made of: a value, no clock, no I/O.
type facts struct {
	now      time.Time
	view     View
	uses     []use
	expires  time.Time // of the version that writes; zero for never or unknown
	signIn   status.Credentials
	rotation *status.Rotation
	behind   bool // a newer version is known than the one that writes
	polled   bool // the newest version has been seen
}

// conditions has one of each type; whatever a failure leaves open is Unknown.
func (f facts) conditions(alarms []status.Alarm) []status.Condition {
	available, credentials, encryption, decryption := f.ofKey()
	for _, a := range f.unreadable() {
		if a.Severity == status.Critical && decryption.Status == status.True {
			decryption = condition(status.False, a.Reason, a.Text)
		}
	}
	all := []status.Condition{available, credentials, encryption, decryption, f.degraded(alarms), f.rotated()}
	for i, t := range status.ConditionTypes() {
		all[i].Type = t
	}
	return all
}

func condition(s status.ConditionStatus, reason, message string) status.Condition {
	return status.Condition{Status: s, Reason: reason, Message: message}
}

// ofKey says what the state of the version that writes means for each of the four.
func (f facts) ofKey() (available, credentials, encryption, decryption status.Condition) {
	available = condition(status.True, reasonAvailable, "the vault has the version that writes, and it is enabled")
	credentials = condition(status.True, reasonAccepted, "the vault lets this identity in")
	encryption = condition(status.True, reasonReady, "a kube-apiserver that asks for a seed gets one")
	decryption = condition(status.True, reasonReady, "every version that data is known to be under can be read")
	err := f.view.Err
	if err == nil {
		if f.view.Phase == Starting {
			unknown := condition(status.Unknown, reasonStarting, "the first probe has not been answered yet")
			return unknown, unknown, unknown, unknown
		}
		return available, credentials, encryption, decryption
	}
	fails := func(s status.ConditionStatus) status.Condition { return condition(s, string(err.Reason), err.Shown()) }
	encryption = fails(status.False)
	if f.view.WriteAlone {
		return available, credentials, encryption, decryption
	}
	decryption = fails(status.False)
	available = fails(status.Unknown)
	if f.view.Kind == keyvault.KindKeyState {
		available = fails(status.False)
	}
	switch err.Reason {
	case keyvault.CredentialsRefused:
		credentials = fails(status.False)
	case keyvault.KeyDisabled, keyvault.KeyDeleted, keyvault.KeyNotFound, keyvault.AccessDenied, keyvault.OperationNotPermitted:
		// The vault judges those only after it has let us in.
	default:
		credentials = fails(status.Unknown)
	}
	return available, credentials, encryption, decryption
}

// degraded is True for whatever needs somebody now, not for what will in some days.
func (f facts) degraded(alarms []status.Alarm) status.Condition {
	switch {
	case len(alarms) > 0 && (alarms[0].Severity == status.Critical || f.view.Err != nil):
		return condition(status.True, alarms[0].Reason, alarms[0].Text)
	case f.view.Phase == Starting:
		return condition(status.Unknown, reasonStarting, "the first probe has not been answered yet")
	}
	return condition(status.False, reasonAsExpected, "nothing needs attention")
}

// rotated is about this plugin alone: whether data was rewritten is for the observer to prove.
func (f facts) rotated() status.Condition {
	r := f.rotation
	switch {
	case !f.polled:
		return condition(status.Unknown, reasonUnseen, `the newest version of the key has not been seen: it takes the key permission "get", and is optional for a pinned version`)
	case !f.behind:
		return condition(status.True, reasonNewest, "the newest version of the key is the one that writes")
	case r == nil:
		return condition(status.False, string(status.RotationPending), "a newer version of the key is known")
	case r.State == status.RotationPinned:
		return condition(status.False, string(r.State), fmt.Sprintf("version %s is newer than the one that --key-version or --key-url names", r.To))
	case r.State == status.RotationWaiting:
		return condition(status.False, string(r.State), fmt.Sprintf("version %s is newer and cannot write yet; the log says why", r.To))
	}
	return condition(status.False, string(status.RotationPending), fmt.Sprintf("version %s is newer and writes %s", r.To, due(r.DueTime)))
}

func due(t *time.Time) string {
	if t == nil {
		return "soon"
	}
	return "from " + t.UTC().Format(time.RFC3339) + " on"
}
