package status_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/status"
)

func TestDecode(t *testing.T) {
	want := degraded(document(1, newer))
	data, err := json.Marshal(want)
	require.NoError(t, err)
	got, err := status.Decode(bytes.NewReader(data))
	require.NoError(t, err)
	require.Equal(t, want, got)

	// Fields are added under one version.
	later := strings.Replace(string(data), "{", `{"addedLater":{"x":[1]},`, 1)
	got, err = status.Decode(strings.NewReader(later))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestDecode_Refuses(t *testing.T) {
	good, err := json.Marshal(document(1, newer))
	require.NoError(t, err)
	with := func(old, replacement string) string { return strings.Replace(string(good), old, replacement, 1) }
	for name, tc := range map[string]struct{ text, says string }{
		"empty":           {"", "empty"},
		"a page":          {"<html>SECRETCANARY</html>", "not the JSON"},
		"half":            {string(good[:len(good)/2]), "not the JSON"},
		"another kind":    {with(status.Kind, "SECRETCANARYSECRETCANARYSECRETCANARYSECRETCANARY!"), "its kind is"},
		"another version": {with(status.APIVersion, "azure-kms-plugin/v9"), `another version: "azure-kms-plugin/v9"`},
		"no time":         {with("observedTime", "observed"), "without observedTime"},
		"no phase":        {with(`"phase":"Usable"`, `"phase":""`), "without phase"},
		"too long":        {strings.Repeat(" ", 1<<20) + string(good), "more than 1048576 bytes"},
		"a wrong type":    {with(`"phase":"Usable"`, `"phase":7`), "not the JSON"},
	} {
		_, err := status.Decode(strings.NewReader(tc.text))
		require.ErrorContains(t, err, tc.says, name)
		require.NotContains(t, err.Error(), "CANARY!", "what was read is cut")
	}
	broken := errors.New("broken off")
	_, err = status.Decode(io.MultiReader(bytes.NewReader(good[:50]), failing{broken}))
	require.ErrorIs(t, err, broken)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestDocument_Exit(t *testing.T) {
	phases := map[status.Phase]int{
		status.Starting: 3, status.Usable: 0, status.Degraded: 1, status.ReadOnly: 1, status.CutOff: 1, status.Lost: 2, "Later": 1,
	}
	for _, p := range status.Phases() {
		require.Contains(t, phases, p)
	}
	for p, exit := range phases {
		d := document(1, newer)
		d.Phase = p
		require.Equal(t, exit, d.Exit(now), p)
		require.Equal(t, 3, d.Exit(now.Add(time.Hour)), "%s, stale", p)
	}
	for name, tc := range map[string]struct {
		exit   int
		change func(*status.Document)
	}{
		"a warning": {0, func(d *status.Document) { d.Alarms = []status.Alarm{{Severity: status.Warning}} }},
		"a critical alarm": {1, func(d *status.Document) {
			d.Alarms = []status.Alarm{{Severity: status.Critical}, {Severity: status.Warning}}
		}},
		"a critical alarm that is not the first": {1, func(d *status.Document) {
			d.Alarms = []status.Alarm{{Severity: status.Warning}, {Severity: status.Critical}}
		}},
		"an alarm of a later severity": {1, func(d *status.Document) { d.Alarms = []status.Alarm{{Severity: "fatal"}} }},
		"an alarm without severity":    {1, func(d *status.Document) { d.Alarms = []status.Alarm{{}} }},
		"Status fails":                 {1, func(d *status.Document) { d.Answer = status.Answer{Text: "KeyDisabled: x"} }},
		"Degraded is True":             {1, func(d *status.Document) { condition(d, status.IsDegraded, status.True, "R", "m") }},
		"Degraded is Unknown":          {1, func(d *status.Document) { condition(d, status.IsDegraded, status.Unknown, "R", "m") }},
		"Degraded is a later word":     {1, func(d *status.Document) { condition(d, status.IsDegraded, "Maybe", "R", "m") }},
		"the version is pinned":        {0, func(d *status.Document) { condition(d, status.KeyRotated, status.False, "Pinned", "m") }},
		"no phase":                     {3, func(d *status.Document) { d.Phase = "" }},
		"no answer":                    {3, func(d *status.Document) { d.Answer = status.Answer{} }},
		"no conditions":                {3, func(d *status.Document) { d.Conditions = nil }},
		"no condition Degraded":        {3, func(d *status.Document) { d.Conditions = d.Conditions[:2] }},
		"no keys":                      {3, func(d *status.Document) { d.Keys = nil }},
		"no key ID":                    {3, func(d *status.Document) { d.KeyID = "" }},
	} {
		require.Equal(t, tc.exit, edit(document(1, newer), tc.change).Exit(now), name)
	}
}

// Staleness begins after the time that the document gives, and five minutes ahead of the
// clock here: clocks differ, but not by that.
func TestDocument_Stale(t *testing.T) {
	d := document(1, newer)
	edge := d.ObservedTime.Add(90 * time.Second)
	require.False(t, d.Stale(edge))
	require.True(t, d.Stale(edge.Add(time.Nanosecond)))
	edge = d.ObservedTime.Add(-5 * time.Minute)
	require.False(t, d.Stale(edge))
	require.True(t, d.Stale(edge.Add(-time.Nanosecond)))
	d.ObservedTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	require.True(t, d.Stale(now), "further than a duration reaches")
	d = document(1, newer)
	d.StaleAfterSeconds = -1
	require.True(t, d.Stale(now))
}

func TestDocument_Condition(t *testing.T) {
	d := degraded(document(1, newer))
	require.Equal(t, status.True, d.Condition(status.IsDegraded).Status)
	require.Equal(t, status.Unknown, (&status.Document{}).Condition(status.KeyRotated).Status)
}
