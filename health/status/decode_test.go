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
	d := document(1, newer)
	d.Alarms = []status.Alarm{{Severity: status.Warning}}
	require.Equal(t, 0, d.Exit(now))
	d.Alarms = []status.Alarm{{Severity: status.Critical}, {Severity: status.Warning}}
	require.Equal(t, 1, d.Exit(now))
}

// Staleness begins after the time that the document gives; one from the future, as of
// a clock that is ahead, is not stale.
func TestDocument_Stale(t *testing.T) {
	d := document(1, newer)
	edge := d.ObservedTime.Add(90 * time.Second)
	require.False(t, d.Stale(edge))
	require.True(t, d.Stale(edge.Add(time.Nanosecond)))
	require.False(t, d.Stale(d.ObservedTime.Add(-time.Hour)))
}

func TestDocument_Condition(t *testing.T) {
	d := degraded(document(1, newer))
	require.Equal(t, status.True, d.Condition(status.IsDegraded).Status)
	require.Equal(t, status.Unknown, (&status.Document{}).Condition(status.KeyRotated).Status)
}
