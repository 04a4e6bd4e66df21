package page

import (
	"cmp"
	"fmt"

	"azure-kms-plugin/health/status"
)

const (
	toldLost = "kube-apiserver is told so, and stops writing secrets until the key decrypts again. Do not restart kube-apiserver: it would forget what it can still read."
	// toldStarting is for a failure: without one, the first answer is on its way.
	toldStarting = "Nothing has been decrypted since the start. Status fails until the first decrypt succeeds."
)

// summary is the banner: how good the state is, its name, and what it means for the
// cluster. Its colour is that of the gravest thing on the page: nobody reads on below
// a green one.
func summary(d *status.Document) (t Tone, state string, sentences []string) {
	state = cmp.Or(string(d.Phase), "Unknown")
	t, meaning := phase(d)
	if d.Failure != nil {
		return t, state + " (" + d.Failure.Reason + ")", []string{meaning}
	}
	if d.Phase != status.Usable {
		return t, state, []string{meaning}
	}
	critical, warnings := d.Alarming()
	switch {
	case critical != nil && critical.Version != "" && critical.KeyID != d.KeyID:
		return Bad, state + ", but older data is in danger (" + critical.Reason + ")",
			[]string{"The key that writes works. Data under an older version cannot be read: see the alarm."}
	case critical != nil:
		return Bad, state + ", with an alarm (" + critical.Reason + ")", []string{"The key that writes works. Somebody has to act now: see the alarm."}
	case warnings == 1:
		return t, state, []string{meaning, "1 warning below."}
	case warnings > 1:
		return t, state, []string{meaning, fmt.Sprintf("%d warnings below.", warnings)}
	}
	return t, state, []string{meaning}
}

// phase says how good a phase is and what it means.
func phase(d *status.Document) (Tone, string) {
	switch d.Phase {
	case status.Starting:
		if d.Failure != nil {
			return Bad, toldStarting
		}
		return Unknown, "Whether the key can be used is not known yet. kube-apiserver is told to wait."
	case status.Usable:
		return Good, "The key works. Secrets can be read and written."
	case status.Degraded:
		return Attention, "The key cannot be used as it should, and the cluster does not feel it yet: kube-apiserver goes on with what it holds in memory."
	case status.ReadOnly:
		return Attention, "The key still decrypts, and refuses to encrypt. Reads and API servers that run go on; one that is restarted cannot write secrets. Do not restart kube-apiserver before this is mended."
	case status.CutOff:
		return Bad, "Data that another API server has written cannot be opened here. kube-apiserver is told that this node is not ready, so that the others serve in its place."
	case status.Lost:
		return Bad, lost(d.Failure) + " " + toldLost
	}
	return Unknown, "This page does not know the state that it was given."
}

// lost says what is lost: a vault that has long been silent says nothing of its key.
func lost(f *status.Failure) string {
	switch {
	case f == nil:
		return "The key is lost or refused."
	case f.Kind == "Fault":
		return "Counts as lost: no useful answer for longer than --outage-grace. The key itself may be fine."
	case f.Reason == "VaultNotFound":
		return "Counts as lost: the vault's name has not existed for longer than --denial-grace. The key itself may be fine."
	case f.Kind == "Refusal":
		return "Counts as lost: access to the key is refused. The key itself may be fine."
	}
	return "The vault says that the key cannot be used."
}
