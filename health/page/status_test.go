package page

import (
	"html"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/status"
)

const failed = "kvlab.vault.azure.net, key k1: no answer in time"

var made = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// document is one of a plugin in a phase, with a failure if there is a reason.
func document(phase status.Phase, reason, kind string, alarms ...status.Alarm) *status.Document {
	const key = "https://kvlab.vault.azure.net/keys/k1"
	ago := func(d time.Duration) *time.Time { return new(made.Add(-d)) }
	d := &status.Document{ObservedTime: made, Key: key, KeyID: "new", Phase: phase, Answer: status.Answer{OK: true, Text: "ok"}, Alarms: alarms}
	d.Keys = []status.Key{
		{Version: "v2", KeyID: "new", URL: key + "/v2", Role: status.RoleWrite, Enabled: new(true), AttributesTime: ago(time.Hour), Reason: reason},
		{Version: "v1", KeyID: "old", URL: key + "/v1", Role: status.RoleRead, Enabled: new(true), AttributesTime: ago(time.Hour)},
		{Version: "v0", KeyID: "other", URL: key + "x/v0", Role: status.RoleRead, Enabled: new(true), AttributesTime: ago(time.Hour)},
	}
	if reason == "" {
		return d
	}
	d.Failure = &status.Failure{Reason: reason, Kind: kind, Since: *ago(25 * time.Minute), LossTime: ago(-time.Hour), Text: failed}
	if phase == status.Lost {
		d.Failure.LossTime = ago(time.Minute)
	}
	if phase == status.Lost || phase == status.Starting {
		d.Answer = status.Answer{Text: reason + ": " + failed}
	}
	d.Alarms = append(d.Alarms, status.Alarm{Severity: status.Critical, Reason: reason, Version: "v2", KeyID: "new", Text: "what it means: " + failed})
	d.Conditions = []status.Condition{
		{Type: status.KeyAvailable, Status: status.Unknown, Reason: reason, Message: failed},
		{Type: status.IsDegraded, Status: status.True, Reason: reason, Message: d.Alarms[0].Text},
	}
	return d
}

// shown is what stands on a page, without its markup.
func shown(d *status.Document) string { return html.UnescapeString(string(Status(d))) }

// The banner has the colour of the gravest thing below it, and says in words what that is.
func TestStatus_Banner(t *testing.T) {
	old := status.Alarm{Severity: status.Critical, Reason: "KeyDisabled", Version: "v1", KeyID: "old", Text: "old version"}
	own := status.Alarm{Severity: "emergency", Reason: "Other", Text: "of a later version"}
	warning := status.Alarm{Severity: status.Warning, Reason: "KeyExpiresSoon", Version: "v2", KeyID: "new", Text: "soon"}
	for name, tc := range map[string]struct {
		d     *status.Document
		tone  string
		state string
		says  string
	}{
		"well":         {document(status.Usable, "", ""), "good", "Usable", "Secrets can be read and written."},
		"a warning":    {document(status.Usable, "", "", warning), "good", "Usable", "1 warning below."},
		"warnings":     {document(status.Usable, "", "", warning, warning), "good", "Usable", "2 warnings below."},
		"older data":   {document(status.Usable, "", "", old, warning), "bad", "Usable, but older data is in danger (KeyDisabled)", "Data under an older version cannot be read: see the alarm."},
		"another":      {document(status.Usable, "", "", own), "bad", "Usable, with an alarm (Other)", "Somebody has to act now"},
		"starting":     {document(status.Starting, "", ""), "unknown", "Starting", "is told to wait"},
		"starting ill": {document(status.Starting, "Unreachable", "Fault"), "bad", "Starting (Unreachable)", "Status fails until the first decrypt succeeds."},
		"silent":       {document(status.Lost, "Unreachable", "Fault"), "bad", "Lost (Unreachable)", "no useful answer for longer than --outage-grace. The key itself may be fine."},
		"refused":      {document(status.Lost, "AccessDenied", "Refusal"), "bad", "Lost (AccessDenied)", "access to the key is refused"},
		"no such name": {document(status.Lost, "VaultNotFound", "Refusal"), "bad", "Lost (VaultNotFound)", "the vault's name has not existed"},
		"deleted":      {document(status.Lost, "KeyDeleted", "KeyState"), "bad", "Lost (KeyDeleted)", "The vault says that the key cannot be used."},
	} {
		t.Run(name, func(t *testing.T) {
			page := shown(tc.d)
			require.Contains(t, page, `<div class="banner `+tc.tone+`">`)
			require.Contains(t, page, "<title>"+tc.state+" - ")
			require.Contains(t, page, "</span>"+tc.state+"</p>")
			require.Contains(t, page, tc.says)
			trouble := tc.d.Failure != nil && tc.d.Failure.Kind != "KeyState"
			require.Equal(t, trouble, strings.Contains(page, status.SeeDoctor))
			if tc.state != "Usable" {
				require.NotContains(t, page, "Secrets can be read and written.")
			}
		})
	}
}

// What was seen is said once, and since when it fails is told from since when it is lost.
func TestStatus_SaysItOnce(t *testing.T) {
	page := shown(document(status.Lost, "Unreachable", "Fault"))
	require.Equal(t, 1, strings.Count(page, failed))
	require.Contains(t, page, "what it means: see above")
	require.Contains(t, page, "not ok: Unreachable: see above")
	require.Contains(t, page, `failing since</th><td role="cell">2026-12-01 11:35:00 UTC`)
	require.Contains(t, page, `lost since</th><td role="cell">2026-12-01 11:59:00 UTC`)
	require.Contains(t, shown(document(status.Degraded, "Unreachable", "Fault")), `counts as a loss from</th><td role="cell">2026-12-01 13:00:00 UTC`)
	starting := shown(document(status.Starting, "Unreachable", "Fault"))
	require.Contains(t, starting, `Status fails</th><td role="cell">until the first decrypt`)
	require.NotContains(t, starting, "a loss")
}

// What the vault said of a version before its key was gone is not shown as so now.
func TestStatus_KeysOfAKeyThatIsGone(t *testing.T) {
	for _, reason := range []string{"KeyDeleted", "KeyNotFound"} {
		d := document(status.Lost, reason, "KeyState")
		page := shown(d)
		require.Contains(t, page, "cannot be used: "+reason)
		require.Contains(t, page, "</span>"+reason+"; enabled when last seen")
		require.Equal(t, 1, strings.Count(page, "</span>enabled<"), "that of another key")
		d.Keys[1].AttributesTime = new(d.Failure.Since.Add(time.Second))
		require.Equal(t, 2, strings.Count(shown(d), "</span>enabled<"), "that was seen since")
	}
	require.Equal(t, 2, strings.Count(shown(document(status.Lost, "AccessDenied", "Refusal")), "</span>enabled<"))
}
