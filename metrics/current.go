package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// Key is how the key that writes is at a moment. Zero times mean never, or not known.
type Key struct {
	KeyID          string // empty while no version is known
	Phase          status.Phase
	Usable         bool // it can be used now
	Ready          bool // Status says "ok"
	LastSuccess    time.Time
	LastGet        time.Time
	LastDecrypt    time.Time
	MetadataAccess bool
	Created        time.Time
	Expires        time.Time
	Purge          time.Time // when the vault destroys it, if it is deleted
	LastPoll       time.Time // the last look that showed the newest version
	NewerVersion   bool      // a version is known that is newer than the one that writes
	OutageSeconds  float64   // with a failure as the last evidence, since the start
}

// An Alarm is about one version of the key. Its reason comes from a closed list.
type Alarm struct {
	KeyID    string
	Severity status.Severity
	Reason   string
}

// A value is a series without labels of its own that is read from a Key.
type value struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(Key) float64
}

// current collects what is at the moment of a scrape: each function is called once,
// so that what a scrape says of the key fits together.
type current struct {
	cfg    Config
	values []value

	phase, created, condition, alarm, expiry, reloads *prometheus.Desc
}

func newCurrent(cfg Config) *current {
	c := &current{
		cfg: cfg,
		phase: prometheus.NewDesc("phase",
			"1 for the phase that the key that writes is in, 0 for the others.", []string{"phase"}, nil),
		created: prometheus.NewDesc("key_created_timestamp_seconds",
			"When the version that writes was created; 0 if not known.", []string{"key_id_hash"}, nil),
		condition: prometheus.NewDesc("condition",
			"1 for the present state of each condition of the status document; other states have no series.", []string{"type", "status", "reason"}, nil),
		alarm: prometheus.NewDesc("key_version_alarm",
			"1 for each version of the key that somebody has to do something about; others have no series.", []string{"key_id_hash", "severity", "reason"}, nil),
		expiry: prometheus.NewDesc("credential_expiry_timestamp_seconds",
			"When the certificate, or the identity file that holds it, is of no more use; 0 if none signs in.", nil, nil),
		reloads: prometheus.NewDesc("credential_reloads_total",
			"Changed credential files that were taken over (success), or could not be used so that what was read before still was (failure).", []string{"result"}, nil),
	}
	add := func(kind prometheus.ValueType, name, help string, of func(Key) float64) {
		c.values = append(c.values, value{prometheus.NewDesc(name, help, nil, nil), kind, of})
	}
	gauge := func(name, help string, of func(Key) float64) { add(prometheus.GaugeValue, name, help, of) }
	gauge("key_usable", "1 if the key that writes can be used now: the last evidence about it is a success.",
		func(k Key) float64 { return truth(k.Usable) })
	gauge("status_ok", "1 if Status says ok, which it also does while a failure is not obeyed as a loss.",
		func(k Key) float64 { return truth(k.Ready) })
	gauge("last_success_timestamp_seconds", "When a remote decrypt under the key that writes last succeeded; 0 for never.",
		func(k Key) float64 { return seconds(k.LastSuccess) })
	gauge("probe_get_timestamp_seconds", "When the prober last got the key's attributes or failed to; 0 for never.",
		func(k Key) float64 { return seconds(k.LastGet) })
	gauge("probe_decrypt_timestamp_seconds", "When the prober last decrypted its canary or failed to; 0 for never.",
		func(k Key) float64 { return seconds(k.LastDecrypt) })
	gauge("metadata_access", "0 if the identity may not get the key's attributes, which costs information but no function.",
		func(k Key) float64 { return truth(k.MetadataAccess) })
	gauge("key_expiry_timestamp_seconds", "When the version that writes expires; 0 for never, or not known.",
		func(k Key) float64 { return seconds(k.Expires) })
	gauge("key_purge_timestamp_seconds", "When the vault destroys the key, which is deleted; 0 if it is not, or the date is not known.",
		func(k Key) float64 { return seconds(k.Purge) })
	gauge("newest_version_poll_timestamp_seconds", "When the newest version of the key was last looked up with success; 0 for never.",
		func(k Key) float64 { return seconds(k.LastPoll) })
	gauge("newer_version_available", "1 if a newer version of the key is known than the one that writes.",
		func(k Key) float64 { return truth(k.NewerVersion) })
	add(prometheus.CounterValue, "outage_seconds_total", "Seconds during which the last evidence about the key that writes was a failure.",
		func(k Key) float64 { return k.OutageSeconds })
	return c
}

// Describe implements prometheus.Collector.
func (c *current) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range c.values {
		ch <- v.desc
	}
	for _, d := range []*prometheus.Desc{c.phase, c.created, c.condition, c.alarm, c.expiry, c.reloads} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *current) Collect(ch chan<- prometheus.Metric) {
	set := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	if c.cfg.Key != nil {
		k := c.cfg.Key()
		for _, v := range c.values {
			set(v.desc, v.kind, v.of(k))
		}
		for _, p := range status.Phases() {
			set(c.phase, prometheus.GaugeValue, truth(p == k.Phase), string(p))
		}
		set(c.created, prometheus.GaugeValue, seconds(k.Created), hashOf(k.KeyID))
	}
	if c.cfg.Conditions != nil {
		for _, s := range conditionStates(c.cfg.Conditions()) {
			set(c.condition, prometheus.GaugeValue, 1, string(s.Type), string(s.Status), s.Reason)
		}
	}
	if c.cfg.Alarms != nil {
		// Two series alike would spoil the whole scrape.
		said := map[Alarm]bool{}
		for _, a := range c.cfg.Alarms() {
			if !said[a] && len(said) < maxKeyIDs {
				said[a] = true
				set(c.alarm, prometheus.GaugeValue, 1, hashOf(a.KeyID), string(a.Severity), a.Reason)
			}
		}
	}
	if c.cfg.Credential != nil {
		s := c.cfg.Credential()
		set(c.expiry, prometheus.GaugeValue, seconds(s.Expires))
		set(c.reloads, prometheus.CounterValue, float64(s.Reloads), "success")
		set(c.reloads, prometheus.CounterValue, float64(s.FailedReloads), "failure")
	}
}

// conditionStates has one state of each type, also of those that were not told.
func conditionStates(told []status.Condition) (states []status.Condition) {
	d := status.Document{Conditions: told}
	for _, t := range status.ConditionTypes() {
		states = append(states, d.Condition(t))
	}
	return states
}

// hashOf is the label value of a key ID that is ours.
func hashOf(keyID string) string {
	if keyID == "" {
		return unknownKeyID
	}
	return keyvault.KeyIDHash(keyID)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
