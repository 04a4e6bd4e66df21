package metrics_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/metrics"
)

// Each gauge of the key shows its own field, and nothing else does.
func TestKeyGauges(t *testing.T) {
	at := time.Unix(1_700_000_000, 500_000_000)
	const created = `key_created_timestamp_seconds{key_id_hash="unknown"}`
	shown := map[string]struct {
		key   metrics.Key
		value string
	}{
		"key_usable":                            {metrics.Key{Usable: true}, "1"},
		"status_ok":                             {metrics.Key{Ready: true}, "1"},
		"last_success_timestamp_seconds":        {metrics.Key{LastSuccess: at}, "1.7000000005e+09"},
		"probe_get_timestamp_seconds":           {metrics.Key{LastGet: at}, "1.7000000005e+09"},
		"probe_decrypt_timestamp_seconds":       {metrics.Key{LastDecrypt: at}, "1.7000000005e+09"},
		"metadata_access":                       {metrics.Key{MetadataAccess: true}, "1"},
		"key_expiry_timestamp_seconds":          {metrics.Key{Expires: at}, "1.7000000005e+09"},
		"newest_version_poll_timestamp_seconds": {metrics.Key{LastPoll: at}, "1.7000000005e+09"},
		"newer_version_available":               {metrics.Key{NewerVersion: true}, "1"},
		"key_purge_timestamp_seconds":           {metrics.Key{Purge: at}, "1.7000000005e+09"},
		"outage_seconds_total":                  {metrics.Key{OutageSeconds: 7.5}, "7.5"},
		created:                                 {metrics.Key{Created: at}, "1.7000000005e+09"},
		`phase{phase="Lost"}`:                   {metrics.Key{Phase: status.Lost}, "1"},
		`phase{phase="Starting"}`:               {metrics.Key{Phase: status.Starting}, "1"},
	}
	for name, want := range shown {
		reg := prometheus.NewPedanticRegistry()
		metrics.New(reg, metrics.Config{Key: func() metrics.Key { return want.key }})
		got := scrape(t, reg)
		for other := range shown {
			value := "0"
			if other == name {
				value = want.value
			}
			require.Contains(t, got, "\nazure_kms_"+other+" "+value+"\n", name)
		}
	}
}

// scraped is a scrape with one source of what is now.
func scraped(t *testing.T, cfg metrics.Config) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	metrics.New(reg, cfg)
	return scrape(t, reg)
}

func TestPhase(t *testing.T) {
	got := scraped(t, metrics.Config{Key: func() metrics.Key { return metrics.Key{Phase: status.CutOff} }})
	for _, p := range status.Phases() {
		value := 0
		if p == status.CutOff {
			value = 1
		}
		require.Contains(t, got, fmt.Sprintf("azure_kms_phase{phase=%q} %d\n", p, value))
	}
	require.Equal(t, len(status.Phases()), strings.Count(got, "\nazure_kms_phase{"))
}

func TestCreated(t *testing.T) {
	got := scraped(t, metrics.Config{Key: func() metrics.Key {
		return metrics.Key{KeyID: write.KeyID(), Created: time.Unix(1_700_000_000, 0)}
	}})
	require.Contains(t, got, fmt.Sprintf("azure_kms_key_created_timestamp_seconds{key_id_hash=%q} 1.7e+09\n", keyvault.KeyIDHash(write.KeyID())))
}

// Each type has one series whatever is told of it, and what it was before leaves none.
func TestConditions(t *testing.T) {
	var now []status.Condition
	reg := prometheus.NewPedanticRegistry()
	metrics.New(reg, metrics.Config{Conditions: func() []status.Condition { return now }})
	lines := func() (all []string) {
		for line := range strings.Lines(scrape(t, reg)) {
			if strings.HasPrefix(line, "azure_kms_condition{") {
				all = append(all, strings.TrimPrefix(strings.TrimSpace(line), "azure_kms_condition"))
			}
		}
		return all
	}
	series := func(t status.ConditionType, s status.ConditionStatus, reason string) string {
		return fmt.Sprintf("{reason=%q,status=%q,type=%q} 1", reason, s, t)
	}
	first := lines()
	require.Len(t, first, len(status.ConditionTypes()))
	for _, c := range status.ConditionTypes() {
		require.Contains(t, first, series(c, status.Unknown, "NotReported"))
	}
	now = []status.Condition{
		{Type: status.KeyAvailable, Status: status.False, Reason: "KeyDisabled", Message: "MESSAGECANARY"},
		{Type: status.KeyAvailable, Status: status.True, Reason: "Twice"},
		{Type: "Invented", Status: status.True, Reason: "CANARY"},
		{Type: status.IsDegraded, Status: status.True, Reason: "KeyDisabled"},
	}
	got := lines()
	require.Len(t, got, len(status.ConditionTypes()))
	require.Contains(t, got, series(status.KeyAvailable, status.False, "KeyDisabled"))
	require.Contains(t, got, series(status.IsDegraded, status.True, "KeyDisabled"))
	require.NotContains(t, scrape(t, reg), "CANARY")
	now[0].Status, now[0].Reason = status.True, "KeyEnabled"
	got = lines()
	require.Len(t, got, len(status.ConditionTypes()))
	require.Contains(t, got, series(status.KeyAvailable, status.True, "KeyEnabled"))
}

func TestAlarms(t *testing.T) {
	alarms := []metrics.Alarm{
		{KeyID: old.KeyID(), Severity: status.Critical, Reason: "KeyDisabled"},
		{KeyID: old.KeyID(), Severity: status.Critical, Reason: "KeyDisabled"},
		{KeyID: old.KeyID(), Severity: status.Warning, Reason: "KeyExpired"},
	}
	cfg := metrics.Config{Alarms: func() []metrics.Alarm { return alarms }}
	got := scraped(t, cfg)
	require.Equal(t, 2, strings.Count(got, "\nazure_kms_key_version_alarm{"), "two alike are one")
	for _, line := range []string{`reason="KeyDisabled",severity="critical"`, `reason="KeyExpired",severity="warning"`} {
		require.Contains(t, got, fmt.Sprintf("azure_kms_key_version_alarm{key_id_hash=%q,%s} 1\n", keyvault.KeyIDHash(old.KeyID()), line))
	}
	for i := range 1000 {
		alarms = append(alarms, metrics.Alarm{KeyID: fmt.Sprint("id", i), Severity: status.Critical, Reason: "KeyDisabled"})
	}
	require.LessOrEqual(t, strings.Count(scraped(t, cfg), "\nazure_kms_key_version_alarm{"), 64)
	alarms = nil
	require.NotContains(t, scraped(t, cfg), "key_version_alarm")
}

func TestCredential(t *testing.T) {
	got := scraped(t, metrics.Config{Credential: func() keyvault.CredentialState {
		return keyvault.CredentialState{Method: "METHODCANARY", Fault: "FAULTCANARY", Expires: time.Unix(1_700_000_000, 0), Reloads: 3, FailedReloads: 2}
	}})
	for _, line := range []string{
		`azure_kms_credential_expiry_timestamp_seconds 1.7e+09`,
		`azure_kms_credential_reloads_total{result="success"} 3`,
		`azure_kms_credential_reloads_total{result="failure"} 2`,
	} {
		require.Contains(t, got, "\n"+line+"\n")
	}
	require.NotContains(t, got, "CANARY")
}

// What nobody tells about has no series, and one scrape asks each once.
func TestCurrent_AsksOnce(t *testing.T) {
	require.NotRegexp(t, `azure_kms_(key|phase|condition|credential|outage|status_ok)`, strings.ReplaceAll(scraped(t, metrics.Config{}), "key_id_hash", ""))
	asked := 0
	scraped(t, metrics.Config{Key: func() metrics.Key { asked++; return metrics.Key{} }})
	require.Equal(t, 1, asked)
}
