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
	ago := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	all := map[status.Phase]*status.Document{}
	for _, phase := range status.Phases() {
		all[phase] = usable(now)
		all[phase].Phase = phase
	}
	fail := func(phase status.Phase, f status.Failure, since time.Duration, answer bool, conditions ...status.Condition) *status.Document {
		d := all[phase]
		f.Since = now.Add(-since)
		d.Failure = &f
		d.Answer = status.Answer{OK: answer, Text: "ok"}
		if !answer {
			d.Answer.Text = f.Reason + ": " + f.Text
		}
		d.LastSuccessTime = ago(since + 20*time.Second)
		for _, c := range conditions {
			for i := range d.Conditions {
				if d.Conditions[i].Type == c.Type {
					c.LastTransitionTime = f.Since
					d.Conditions[i] = c
				}
			}
		}
		return d
	}
	degraded := status.Condition{Type: status.IsDegraded, Status: status.True, Reason: "Unreachable", Message: "The vault cannot be reached. Nothing fails yet: see the condition KeyAvailable for what to do."}

	s := all[status.Starting]
	s.Answer = status.Answer{Text: "Unreachable: no answer from the vault yet"}
	s.LastSuccessTime, s.Rotation = nil, nil
	s.KeyID, s.KeyIDHash, s.RemoteKeyID = "", "", ""
	s.ClientCount = 0
	s.Keys, s.Clients, s.Alarms = []status.Key{}, []status.Client{}, []status.Alarm{}
	s.Activity = status.Activity{MetadataAccess: true}
	for i := range s.Conditions {
		s.Conditions[i].Status, s.Conditions[i].Reason, s.Conditions[i].Message = status.Unknown, "Starting", "The vault has not been asked yet."
	}

	fail(status.Degraded, status.Failure{
		Reason: "Unreachable", Cause: "dns", Kind: "Fault", LossTime: new(now.Add(23*time.Hour + 50*time.Minute)),
		Text: "the name kv-prod.vault.azure.net did not resolve: check the DNS server of this node and the private DNS zone",
	}, 10*time.Minute, true, degraded,
		status.Condition{Type: status.KeyAvailable, Status: status.Unknown, Reason: "Unreachable", Message: "The vault cannot be asked. Check the DNS server of this node and the private DNS zone."},
		status.Condition{Type: status.EncryptionReady, Status: status.False, Reason: "Unreachable", Message: "An API server that is restarted now gets no seed. Do not restart kube-apiserver."})

	fail(status.WriteOnly, status.Failure{
		Reason: "KeyExpired", Kind: "WriteOnly", Text: "the key version expired on 2026-11-30: extend its validity, or make a new version",
	}, 26*time.Hour, true,
		status.Condition{Type: status.EncryptionReady, Status: status.False, Reason: "KeyExpired", Message: "An API server that is restarted cannot write secrets. Extend the validity of the version."},
		status.Condition{Type: status.IsDegraded, Status: status.True, Reason: "KeyExpired", Message: "The key refuses to encrypt."})
	all[status.WriteOnly].Keys[0].ExpiryTime = ago(26 * time.Hour)
	all[status.WriteOnly].Keys[0].Reason = "KeyExpired"
	all[status.WriteOnly].Alarms = []status.Alarm{{
		Severity: status.Critical, Reason: "KeyExpired", Version: write,
		Text: "A kube-apiserver that restarts cannot get a new seed. Extend the validity of the version; do not restart kube-apiserver before.",
	}}

	fail(status.CutOff, status.Failure{
		Reason: "NetworkDenied", Kind: "Refusal", LossTime: new(now.Add(4 * time.Minute)),
		Text: "the vault's firewall refuses this node: let its network through, or use the private endpoint",
	}, 6*time.Minute, false, degraded,
		status.Condition{Type: status.DecryptionReady, Status: status.False, Reason: "NetworkDenied", Message: "Data that another API server has written cannot be opened here. Let this network through the vault's firewall."})

	fail(status.Lost, status.Failure{
		Reason: "KeyDeleted", Kind: "KeyState", LossTime: ago(2 * time.Minute), ScheduledPurgeTime: new(now.Add(89 * 24 * time.Hour)),
		Text: "the key is deleted and can be recovered until 2027-02-28: recover it, and do not purge it",
	}, 2*time.Minute+15*time.Second, false, degraded,
		status.Condition{Type: status.KeyAvailable, Status: status.False, Reason: "KeyDeleted", Message: "The key is deleted. Recover it: az keyvault key recover. Do not purge it."},
		status.Condition{Type: status.EncryptionReady, Status: status.False, Reason: "KeyDeleted", Message: "Nothing can be written until the key is recovered."},
		status.Condition{Type: status.DecryptionReady, Status: status.False, Reason: "KeyDeleted", Message: "What kube-apiserver does not hold in memory cannot be read until the key is recovered."})
	d := all[status.Lost]
	d.Keys[0].Enabled, d.Keys[0].Reason, d.Keys[0].ScheduledPurgeTime = new(false), "KeyDeleted", d.Failure.ScheduledPurgeTime
	d.Keys[1].Enabled, d.Keys[1].Reason = new(false), "KeyDisabled"
	d.Alarms = []status.Alarm{
		{Severity: status.Critical, Reason: "KeyDeleted", Text: "The vault destroys the key in 89 days, and with it every secret of this cluster. Recover it; do not purge it, and do not restart kube-apiserver before."},
		{Severity: status.Warning, Reason: "KeyDisabled", Version: read, Text: "Data may be under this old version. Enable it; restart nothing."},
	}
	return all
}

// usable is a document with every part, in the midst of a rotation.
func usable(now time.Time) *status.Document {
	ago := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	d := &status.Document{
		APIVersion: status.APIVersion, Kind: status.Kind, ObservedTime: now, StaleAfterSeconds: 90,
		Instance: status.Instance{
			ID: "5f1c8a52-0d5e-4f0e-9d0b-1f7a1c1e8b11", BootID: "2b0f7f0e-6a0c-4a54-8a41-6d6c2f7b9d10", Node: "control-plane-1", PID: 4711,
			Socket: "unix:///opt/azurekms.socket", Version: "v1.4.0", StartTime: now.Add(-73 * time.Hour),
		},
		Key: key, Following: true,
		Answer: status.Answer{OK: true, Text: "ok"}, Phase: status.Usable, LastSuccessTime: ago(12 * time.Second),
		Alarms: []status.Alarm{{Severity: status.Warning, Reason: "CredentialsExpireSoon", Text: "The certificate that signs in expires in 20 days. Renew it; the file is read again without a restart."}},
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
	for _, t := range status.ConditionTypes() {
		c := status.Condition{Type: t, Status: status.True, LastTransitionTime: now.Add(-73 * time.Hour), Reason: "AsExpected", Message: "The key works."}
		if t == status.IsDegraded {
			c.Status, c.Message = status.False, "Nothing needs attention."
		}
		d.Conditions = append(d.Conditions, c)
	}
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
