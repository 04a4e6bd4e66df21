package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// What a failure means for the cluster comes before what was seen: whoever is woken by
// it needs to know first what still works, and what would make it worse.
const (
	meansLost     = "writes of encrypted resources are refused within 3 minutes of this; reads go on only as long as the kube-apiservers run, so restart none of them: "
	meansCutOff   = "this node is out of service until its vault answers; the others go on: "
	meansBorne    = "reads and writes go on with the seeds that the kube-apiservers hold, so restart none of them"
	meansReadOnly = "reads and running kube-apiservers are not affected; one that restarts cannot write, so restart none of them: "
	meansStarting = "nothing has been decrypted since the start, so Status fails: "
)

// alarms are what somebody has to act on, the gravest first.
func (f facts) alarms() (all []status.Alarm) {
	add := func(s status.Severity, reason string, key keyvault.Ref, text string) {
		all = append(all, alarm(s, reason, key, text))
	}
	v := f.view
	if v.Err != nil {
		severity, means := f.meaning()
		add(severity, string(v.Err.Reason), v.Key, means+v.Err.Shown())
	}
	all = append(all, f.unreadable()...)
	soon := func(at time.Time) bool { return !at.IsZero() && at.After(f.now) && at.Sub(f.now) <= expiryAhead }
	if soon(f.expires) {
		add(status.Warning, reasonExpiresSoon, v.Key, fmt.Sprintf(
			"the version that writes expires at %s, and can then only decrypt: rotate the key, or extend the version's validity", f.expires.UTC().Format(time.RFC3339)))
	}
	if ends := f.signIn.ExpiryTime; ends != nil && soon(*ends) {
		add(status.Warning, reasonCredentialExpiresSoon, keyvault.Ref{}, fmt.Sprintf(
			"the certificate that signs in expires at %s: renew it; the file is read again without a restart", ends.UTC().Format(time.RFC3339)))
	}
	if f.signIn.Fault != "" {
		add(status.Warning, reasonCredentialUnusable, keyvault.Ref{}, "what was read before signs in, because a file that has changed cannot be used: "+f.signIn.Fault)
	}
	slices.SortStableFunc(all, func(a, b status.Alarm) int { return cmp.Compare(rank(a.Severity), rank(b.Severity)) })
	return all
}

// unreadable are the alarms of old versions, latest use first.
func (f facts) unreadable() (all []status.Alarm) {
	v := f.view
	for _, u := range f.uses {
		severity, on := u.alarm(f.now)
		// What has befallen the key as a whole is said already.
		whole := v.Err != nil && on && v.Err.Reason == u.bad.Reason && u.bad.Reason != keyvault.KeyDisabled && u.key.SameKey(v.Key)
		if !on || whole || u.key.SameVersion(v.Key) {
			continue
		}
		all = append(all, alarm(severity, string(u.bad.Reason), u.key, u.unreadable(severity)))
	}
	return all
}

func alarm(s status.Severity, reason string, key keyvault.Ref, text string) status.Alarm {
	a := status.Alarm{Severity: s, Reason: reason, Version: key.Version, Text: text}
	if key.Version != "" {
		a.KeyID = key.KeyID()
	}
	return a
}

func rank(s status.Severity) int {
	if s == status.Critical {
		return 0
	}
	return 1
}

// meaning says how grave the failure of the version that writes is, and what it means.
func (f facts) meaning() (status.Severity, string) {
	v := f.view
	switch {
	case v.Phase == Lost:
		return status.Critical, meansLost
	case v.Phase == CutOff:
		return status.Critical, meansCutOff
	case v.WriteAlone:
		return status.Critical, meansReadOnly
	case v.Phase == Starting:
		return status.Critical, meansStarting
	}
	text := meansBorne
	if !v.LossAt.IsZero() {
		text += fmt.Sprintf("; from %s on, Status fails and writes are refused", v.LossAt.UTC().Format(time.RFC3339))
	}
	if v.Kind == keyvault.KindFault && v.LossAt.Sub(f.now) > time.Hour {
		return status.Warning, text + ": "
	}
	return status.Critical, text + ": "
}

// unreadable says what a bad old version means. Its text is the vault's, which names the version.
func (u *use) unreadable(s status.Severity) string {
	text := "old version " + u.key.Version + " cannot be read, and data "
	switch {
	case u.needed.After(u.last):
		text += "was asked for under it in vain"
	case s == status.Critical:
		text += "may have been under it within the last day"
	default:
		text += "may have been under it at " + u.used().UTC().Format(time.RFC3339)
	}
	switch u.bad.Reason {
	case keyvault.KeyNotFound:
		text += ": what is under it can be read only by kube-apiservers that still hold the seed, so restart none and save what they read; a backup of the key that is restored into its vault opens it again, and a key made anew under the same name does not"
	default:
		text += ": make it usable again unless it is proven that nothing is under it, and restart no kube-apiserver before, as one that restarts cannot list that resource and is not ready"
	}
	return text + " (" + strings.TrimSuffix(u.bad.Shown(), ".") + ")"
}
