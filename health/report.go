package health

import (
	"context"
	"sync"
	"time"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

const (
	// beatPeriod is how soon a change is noticed that no event brings, such as the end of
	// a grace. More often would be garbage that an idle process collects seldom.
	beatPeriod = 5 * time.Second
	// staleAfter is how old a document may be.
	staleAfter = 90 * time.Second
)

// Keyring is what a Report asks about key IDs.
type Keyring interface {
	KeyID(held string) string
	Behind() bool
}

// ReportConfig configures a Report. Tracker, Prober, Uses and Keyring are required; the
// functions must answer from memory, and nil leaves their part out.
type ReportConfig struct {
	Tracker *Tracker
	Prober  *Prober
	Uses    *Uses
	Keyring Keyring

	Instance    status.Instance
	Key         keyvault.Ref // its version is not shown
	Following   bool
	Rotations   *Rotations
	Clients     func() []status.Client
	Credentials func() status.Credentials
}

// A Report makes the status document of what the others know.
type Report struct {
	cfg ReportConfig

	mu   sync.Mutex
	held map[status.ConditionType]status.Condition // as last told
}

// NewReport returns a report on what cfg names.
func NewReport(cfg ReportConfig) *Report {
	if cfg.Rotations == nil {
		cfg.Rotations = &Rotations{}
	}
	if cfg.Clients == nil {
		cfg.Clients = func() []status.Client { return nil }
	}
	if cfg.Credentials == nil {
		cfg.Credentials = func() status.Credentials { return status.Credentials{} }
	}
	cfg.Instance.StartTime = stamp(cfg.Instance.StartTime)
	return &Report{cfg: cfg, held: map[status.ConditionType]status.Condition{}}
}

// Run notices what changes by itself, for the log and for the times of transitions,
// until ctx ends. It returns nil.
func (r *Report) Run(ctx context.Context) error {
	beat := time.NewTicker(beatPeriod)
	defer beat.Stop()
	for {
		r.Conditions()
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
		}
	}
}

// Conditions returns one condition of each type.
func (r *Report) Conditions() []status.Condition {
	f := r.facts()
	return r.since(f.conditions(f.alarms()), f.now)
}

// Alarms returns what somebody has to act on, the gravest first.
func (r *Report) Alarms() []status.Alarm { return r.facts().alarms() }

func (r *Report) facts() facts {
	f := facts{
		now:      time.Now(),
		view:     r.cfg.Tracker.View(),
		uses:     r.cfg.Uses.snapshot(),
		expires:  r.cfg.Prober.Expires(),
		rotation: r.cfg.Rotations.latest(),
		behind:   r.cfg.Keyring.Behind(),
		signIn:   r.cfg.Credentials(),
		polled:   !r.cfg.Rotations.LastLook().IsZero(),
	}
	return f
}

// since puts to each condition when its status last changed.
func (r *Report) since(all []status.Condition, now time.Time) []status.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range all {
		c := &all[i]
		c.LastTransitionTime = stamp(now)
		if held, ok := r.held[c.Type]; ok && held.Status == c.Status {
			c.LastTransitionTime = held.LastTransitionTime
		}
		r.held[c.Type] = *c
	}
	return all
}

// Document returns the state at this moment, from memory.
func (r *Report) Document() *status.Document {
	f := r.facts()
	v, alarms := f.view, f.alarms()
	clients := r.cfg.Clients()
	d := &status.Document{
		APIVersion: status.APIVersion, Kind: status.Kind,
		ObservedTime: stamp(f.now), StaleAfterSeconds: int(staleAfter / time.Second),
		Instance: r.cfg.Instance,
		Key:      r.cfg.Key.WithVersion("").URL(), Following: r.cfg.Following,
		KeyID:  r.cfg.Keyring.KeyID(""),
		Answer: answerOf(v), Phase: v.Phase, Failure: failureOf(v), LastSuccessTime: when(v.LastSuccess),
		Conditions:  r.since(f.conditions(alarms), f.now),
		Alarms:      append([]status.Alarm{}, alarms...),
		Keys:        f.keys(),
		Rotation:    f.rotation,
		Clients:     shownClients(clients),
		ClientCount: len(clients),
		Credentials: f.signIn,
		Activity: status.Activity{
			LastGetProbeTime: when(r.cfg.Prober.LastGet()), LastDecryptProbeTime: when(r.cfg.Prober.LastDecrypt()),
			LastPollTime: when(r.cfg.Rotations.LastLook()), MetadataAccess: r.cfg.Prober.MetadataAccess(),
			OutageSeconds: v.Outage.Seconds(),
		},
	}
	d.RemoteKeyID = d.KeyID
	if d.KeyID != "" {
		d.KeyIDHash = keyvault.KeyIDHash(d.KeyID)
	}
	return d
}

// answerOf is what Status says, as far as the key decides it.
func answerOf(v View) status.Answer {
	switch {
	case v.Answers():
		return status.Answer{OK: true, Text: "ok"}
	case v.Err != nil:
		return status.Answer{Text: v.Err.Error()}
	}
	return status.Answer{Text: silence(v.Key).Error()}
}

func failureOf(v View) *status.Failure {
	if v.Err == nil {
		return nil
	}
	return &status.Failure{
		Reason: string(v.Err.Reason), Cause: string(v.Err.Cause), Kind: string(v.Kind),
		Since: stamp(v.Since), LossTime: when(v.LossAt), ScheduledPurgeTime: when(v.Err.PurgeAt), Text: v.Err.Shown(),
	}
}

// keys are the versions that are known, the one that writes first.
func (f facts) keys() []status.Key {
	all := []status.Key{}
	writes := use{key: f.view.Key}
	for _, u := range f.uses {
		if u.key.SameVersion(writes.key) {
			writes = u
		}
	}
	if writes.key.Version != "" {
		k := writes.show(status.RoleWrite)
		if f.view.Err != nil {
			k.Reason, k.ScheduledPurgeTime = string(f.view.Err.Reason), when(f.view.Err.PurgeAt)
		}
		all = append(all, k)
	}
	for _, u := range f.uses {
		switch r := f.rotation; {
		case u.key.SameVersion(writes.key):
		case r != nil && r.State != status.RotationAdopted && u.key.Version == r.To && u.key.SameKey(writes.key):
			all = append(all, u.show(status.RoleNext))
		default:
			all = append(all, u.show(status.RoleRead))
		}
	}
	return all
}

func (u *use) show(role status.Role) status.Key {
	k := status.Key{
		Version: u.key.Version, KeyID: u.key.KeyID(), URL: u.key.URL(), Role: role,
		AttributesTime: when(u.seen), CreatedTime: when(u.attrs.Created), NotBeforeTime: when(u.attrs.NotBefore),
		ExpiryTime: when(u.attrs.Expires), RecoveryLevel: u.attrs.RecoveryLevel,
		Encrypts: u.encrypts, Decrypts: u.decrypts, Failures: u.failures,
		LastEncryptTime: when(u.lastEncrypt), LastDecryptTime: when(u.lastDecrypt),
	}
	k.KeyIDHash = keyvault.KeyIDHash(k.KeyID)
	if !u.seen.IsZero() {
		k.Enabled = &u.attrs.Enabled
	}
	if u.bad != nil {
		k.Reason, k.ScheduledPurgeTime = string(u.bad.Reason), when(u.bad.PurgeAt)
	}
	return k
}

// stamp is a time as documents have it.
func stamp(t time.Time) time.Time { return t.Round(0).UTC().Truncate(time.Second) }

// when is a time that may not have come.
func when(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = stamp(t)
	return &t
}
