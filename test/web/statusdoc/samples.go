// Package statusdoc has sample status documents of every state, for the tests of all that
// reads or shows one, and holds docs/status.schema.json and docs/status.md to what the
// program writes.
package statusdoc

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"azure-kms-plugin/health/status"
)

const (
	key   = "https://kv-prod.vault.azure.net/keys/etcd"
	write = "0f4e2d6c8b9a4171a5c3d2e1f0a9b8c7"
	read  = "9a8b7c6d5e4f40312a1b0c9d8e7f6a5b"
)

// Samples are documents as a plugin would write them at a moment, by phase.
func Samples(now time.Time) map[status.Phase]*status.Document {
	now = now.UTC()
	ago := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	all := map[status.Phase]*status.Document{}
	for _, phase := range status.Phases() {
		all[phase] = usable(now)
		all[phase].Phase = phase
	}
	// As package health tells them: the failure, and what it means for the cluster, as the
	// gravest alarm.
	fail := func(phase status.Phase, f status.Failure, since time.Duration, severity status.Severity, means string) *status.Document {
		d := all[phase]
		f.Since = now.Add(-since)
		f.Text = "kv-prod.vault.azure.net, key etcd, version " + write + ": " + f.Text
		d.Failure = &f
		if phase == status.CutOff || phase == status.Lost {
			d.Answer = status.Answer{Text: f.Reason + ": " + f.Text}
		}
		d.LastSuccessTime = ago(since + 20*time.Second)
		d.Keys[0].Reason, d.Keys[0].ScheduledPurgeTime = f.Reason, f.ScheduledPurgeTime
		d.Alarms = []status.Alarm{{Severity: severity, Reason: f.Reason, Version: write, KeyID: d.KeyID, Text: means + ": " + f.Text}}
		d.Credentials.ExpiryTime = new(now.Add(200 * 24 * time.Hour))
		set(d, status.IsDegraded, status.True, f.Reason, d.Alarms[0].Text)
		set(d, status.EncryptionReady, status.False, f.Reason, f.Text)
		return d
	}

	s := all[status.Starting]
	s.Answer = status.Answer{Text: "Unreachable: kv-prod.vault.azure.net, key etcd: the first probe has not been answered yet"}
	s.LastSuccessTime, s.Rotation = nil, nil
	s.KeyID, s.KeyIDHash, s.RemoteKeyID = "", "", ""
	s.ClientCount = 0
	s.Keys, s.Clients, s.Alarms = []status.Key{}, []status.Client{}, []status.Alarm{}
	s.Activity = status.Activity{MetadataAccess: true}
	for _, t := range status.ConditionTypes() {
		set(s, t, status.Unknown, "Starting", "the first probe has not been answered yet")
	}
	set(s, status.KeyRotated, status.Unknown, "NewestVersionUnknown", `the newest version of the key has not been seen: it takes the key permission "get", and is optional for a pinned version`)

	const borne = "reads and writes go on with the seeds that the kube-apiservers hold, so restart none of them"
	loss := now.Add(23*time.Hour + 50*time.Minute)
	d := fail(status.Degraded, status.Failure{
		Reason: "Unreachable", Cause: "dns", Kind: "Fault", LossTime: &loss, Text: "the resolver does not answer for kv-prod.vault.azure.net",
	}, 10*time.Minute, status.Warning, borne+"; from "+loss.Format(time.RFC3339)+" on, Status fails and writes are refused")
	for _, t := range []status.ConditionType{status.KeyAvailable, status.CredentialsValid} {
		set(d, t, status.Unknown, d.Failure.Reason, d.Failure.Text)
	}
	set(d, status.DecryptionReady, status.False, d.Failure.Reason, d.Failure.Text)

	d = fail(status.ReadOnly, status.Failure{
		Reason: "KeyExpired", Kind: "Unwritable", Text: "the version has expired, so it only decrypts (http 403, Forbidden/KeyExpired, request 7c0a7f1e-5b0e-4d9f-9d0c-3a5b1c8a4f10); change to a new version (az keyvault key rotate --vault-name kv-prod --name etcd) or move its expiry date (az keyvault key set-attributes --vault-name kv-prod --name etcd --version " + write + " --expires)",
	}, 26*time.Hour, status.Critical, "reads and running kube-apiservers are not affected; one that restarts cannot write, so restart none of them")
	d.Keys[0].ExpiryTime = ago(26 * time.Hour)
	d.LastSuccessTime = ago(12 * time.Second)

	d = fail(status.CutOff, status.Failure{
		Reason: "NetworkDenied", Kind: "Refusal", LossTime: new(now.Add(4 * time.Minute)), Text: "the vault's firewall or private link refuses this caller (http 403, Forbidden/ForbiddenByFirewall, request 91d3a6a2-3a2f-4f60-8d53-1b6f0e2d7c44); allow this network or its private endpoint in the vault's networking settings",
	}, 6*time.Minute, status.Critical, "this node is out of service until its vault answers; the others go on")
	for _, t := range []status.ConditionType{status.KeyAvailable, status.CredentialsValid} {
		set(d, t, status.Unknown, d.Failure.Reason, d.Failure.Text)
	}
	set(d, status.DecryptionReady, status.False, d.Failure.Reason, d.Failure.Text)

	purge := now.Add(89 * 24 * time.Hour)
	d = fail(status.Lost, status.Failure{
		Reason: "KeyDeleted", Kind: "KeyState", LossTime: ago(2 * time.Minute), ScheduledPurgeTime: &purge, Text: "the key is deleted, and can be recovered until " + purge.Format(time.RFC3339) + " (http 404, KeyNotFound, request 0d6c1c3e-8c0b-4a5e-8f3e-6f1b2a9d5e77); recover it (az keyvault key recover --vault-name kv-prod --name etcd), do not purge it",
	}, 2*time.Minute+15*time.Second, status.Critical, "writes of encrypted resources are refused within 3 minutes of this; reads go on only as long as the kube-apiservers run, so restart none of them")
	set(d, status.KeyAvailable, status.False, d.Failure.Reason, d.Failure.Text)
	set(d, status.DecryptionReady, status.False, d.Failure.Reason, d.Failure.Text)
	d.Keys[1].Enabled, d.Keys[1].Reason = new(false), "KeyDisabled"
	d.Keys[1].LastEncryptTime, d.Keys[1].LastDecryptTime = ago(172*time.Hour), ago(105*time.Hour)
	d.Alarms = append(d.Alarms, status.Alarm{
		Severity: status.Warning, Reason: "KeyDisabled", Version: read, KeyID: d.Keys[1].KeyID,
		Text: "old version " + read + " cannot be read, and data may have been under it at " + d.Keys[1].LastDecryptTime.Format(time.RFC3339) + ": make it usable again unless it is proven that nothing is under it, and restart no kube-apiserver before, as one that restarts cannot list that resource and is not ready (kv-prod.vault.azure.net, key etcd, version " + read + ": the version is disabled; enable this version again (az keyvault key set-attributes --vault-name kv-prod --name etcd --version " + read + " --enabled true))",
	})
	return all
}

// set is one condition as it is, changed when the failure was first seen.
func set(d *status.Document, t status.ConditionType, s status.ConditionStatus, reason, message string) {
	at := d.Instance.StartTime
	if d.Failure != nil {
		at = d.Failure.Since
	}
	for i := range d.Conditions {
		if d.Conditions[i].Type == t {
			d.Conditions[i] = status.Condition{Type: t, Status: s, LastTransitionTime: at, Reason: reason, Message: message}
		}
	}
}

// usable is a document with every part, in the midst of a rotation.
func usable(now time.Time) *status.Document {
	ago := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	d := &status.Document{
		APIVersion: status.APIVersion, Kind: status.Kind, ObservedTime: now, StaleAfterSeconds: 90,
		Instance: status.Instance{
			ID: "S55JL3SHQ2WNRT4KXZD6MVPA7C", BootID: "2b0f7f0e-6a0c-4a54-8a41-6d6c2f7b9d10", Node: "control-plane-1", PID: 4711,
			Socket: "unix:///opt/azurekms.socket", Version: "v1.4.0", StartTime: now.Add(-73 * time.Hour),
		},
		Key: key, Following: true,
		Answer: status.Answer{OK: true, Text: "ok"}, Phase: status.Usable, LastSuccessTime: ago(12 * time.Second),
		Alarms: []status.Alarm{{
			Severity: status.Warning, Reason: "CredentialExpiresSoon",
			Text: "the certificate that signs in expires at " + now.Add(20*24*time.Hour).Format(time.RFC3339) + ": renew it; the file is read again without a restart",
		}},
		Keys: []status.Key{
			{
				Version: write, Role: status.RoleWrite, AttributesTime: ago(40 * time.Second), Enabled: new(true), CreatedTime: ago(50 * time.Hour),
				NotBeforeTime: ago(50 * time.Hour), ExpiryTime: new(now.Add(315 * 24 * time.Hour)), RecoveryLevel: "Recoverable+Purgeable",
				Encrypts: 3, Decrypts: 1201, LastEncryptTime: ago(49 * time.Hour), LastDecryptTime: ago(3 * time.Minute),
			},
			{
				Version: read, Role: status.RoleRead, AttributesTime: ago(30 * time.Minute), Enabled: new(true), CreatedTime: ago(365 * 24 * time.Hour),
				RecoveryLevel: "Recoverable+Purgeable", Encrypts: 1, Decrypts: 88, Failures: 2, LastEncryptTime: ago(72 * time.Hour), LastDecryptTime: ago(5 * time.Hour),
			},
		},
		Rotation: &status.Rotation{
			From: read, To: write, State: status.RotationAdopted,
			StartedTime: ago(50 * time.Hour), DueTime: ago(50*time.Hour - 3*time.Minute), CompletionTime: ago(50*time.Hour - 3*time.Minute),
		},
		Activity: status.Activity{
			LastGetProbeTime: ago(40 * time.Second), LastDecryptProbeTime: ago(12 * time.Second), LastPollTime: ago(40 * time.Second),
			MetadataAccess: true, OutageSeconds: 34.5,
		},
		Credentials: status.Credentials{Method: "client certificate", ExpiryTime: new(now.Add(20 * 24 * time.Hour)), Reloads: 2},
	}
	for i, k := range d.Keys {
		d.Keys[i].URL = key + "/" + k.Version
		d.Keys[i].KeyID, d.Keys[i].KeyIDHash = ids(d.Keys[i].URL)
	}
	d.KeyID, d.KeyIDHash, d.RemoteKeyID = d.Keys[0].KeyID, d.Keys[0].KeyIDHash, d.Keys[0].KeyID
	d.Clients = []status.Client{
		{PID: 1812, APIServer: true, KeyID: d.KeyID, Since: now.Add(-72 * time.Hour)},
		{PID: 2290, KeyID: d.Keys[1].KeyID, Since: now.Add(-51 * time.Hour)},
	}
	d.ClientCount = len(d.Clients)
	d.Conditions = make([]status.Condition, len(status.ConditionTypes()))
	for i, t := range status.ConditionTypes() {
		d.Conditions[i].Type = t
	}
	set(d, status.KeyAvailable, status.True, "Available", "the vault has the version that writes, and it is enabled")
	set(d, status.CredentialsValid, status.True, "Accepted", "the vault lets this identity in")
	set(d, status.EncryptionReady, status.True, "Ready", "a kube-apiserver that asks for a seed gets one")
	set(d, status.DecryptionReady, status.True, "Ready", "every version that data is known to be under can be read")
	set(d, status.IsDegraded, status.False, "AsExpected", "nothing needs attention")
	set(d, status.KeyRotated, status.True, "NewestVersion", "the newest version of the key is the one that writes")
	return d
}

// ids are the key ID of a version and its hash.
func ids(url string) (id, hash string) {
	sum := sha256.Sum256([]byte(url))
	id = hex.EncodeToString(sum[:])
	sum = sha256.Sum256([]byte(id))
	return id, "sha256:" + hex.EncodeToString(sum[:])
}

// Hostile is a document whose every text tries to become markup, to be read in another
// way than it is written, or to be wider than a screen.
func Hostile(now time.Time) *status.Document {
	d := Samples(now)[status.Lost]
	evil := `"><script>document.title="pwned"</script><img src=x onerror="document.title='pwned'">&lt;` + "\u202e\x00\xff" + strings.Repeat("W", 300)
	d.Phase, d.Key, d.KeyID, d.KeyIDHash, d.RemoteKeyID = status.Phase(evil), evil, evil, evil, evil
	d.Answer.Text = evil
	d.Instance = status.Instance{ID: evil, BootID: evil, Node: evil, Socket: evil, Version: evil}
	d.Failure.Reason, d.Failure.Cause, d.Failure.Kind, d.Failure.Text = evil, evil, evil, evil
	for i := range d.Conditions {
		d.Conditions[i] = status.Condition{Type: status.ConditionType(evil), Status: status.ConditionStatus(evil), Reason: evil, Message: evil}
	}
	for i := range d.Alarms {
		d.Alarms[i] = status.Alarm{Severity: status.Severity(evil), Reason: evil, Version: evil, Text: evil}
	}
	for i := range d.Keys {
		d.Keys[i] = status.Key{Version: evil, KeyID: evil, KeyIDHash: evil, Role: status.Role(evil), URL: evil, RecoveryLevel: evil, Reason: evil}
	}
	d.Rotation = &status.Rotation{From: evil, To: evil, State: status.RotationState(evil)}
	d.Clients = []status.Client{{KeyID: evil}}
	d.Credentials.Method = evil
	return d
}
