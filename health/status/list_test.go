package status_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/console"
	"azure-kms-plugin/health/status"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// now is when the lists of these tests are made; documents are ten seconds old.
var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

const (
	keyURL = "https://kvlab.vault.azure.net/keys/k1"
	older  = "0123456789abcdef0123456789abcdef"
	newer  = "fedcba9876543210fedcba9876543210"
)

func at(before time.Duration) *time.Time {
	t := now.Add(-before)
	return &t
}

// document is one of a replica that is well and writes under a version.
func document(n int, version string) *status.Document {
	d := &status.Document{
		APIVersion: status.APIVersion, Kind: status.Kind, ObservedTime: *at(10 * time.Second), StaleAfterSeconds: 90,
		Instance: status.Instance{ID: fmt.Sprintf("%d1111111-aaaa-bbbb-cccc-dddddddddddd", n), Node: fmt.Sprintf("node-%d", n), Socket: "unix:///opt/azurekms.socket"},
		Key:      keyURL, Following: true, KeyID: "id-" + version,
		Answer: status.Answer{OK: true, Text: "ok"}, Phase: status.Usable,
	}
	for _, c := range status.ConditionTypes() {
		good := status.Condition{Type: c, Status: status.True, Reason: "Usable", Message: "all is well", LastTransitionTime: *at(time.Hour)}
		if c == status.IsDegraded {
			good.Status = status.False
		}
		d.Conditions = append(d.Conditions, good)
	}
	d.Keys = []status.Key{{Version: version, KeyID: d.KeyID, Role: status.RoleWrite, CreatedTime: at(created[version])}}
	return d
}

var created = map[string]time.Duration{older: 1000 * time.Hour, newer: time.Hour}

func condition(d *status.Document, t status.ConditionType, s status.ConditionStatus, reason, message string) {
	for i := range d.Conditions {
		if d.Conditions[i].Type == t {
			d.Conditions[i] = status.Condition{Type: t, Status: s, Reason: reason, Message: message, LastTransitionTime: *at(time.Minute)}
		}
	}
}

const away = "kvlab.vault.azure.net, key k1: connecting: connection refused"

// degraded is a replica that is cut off from its vault.
func degraded(d *status.Document) *status.Document {
	loss := now.Add(24 * time.Hour)
	d.Phase = status.Degraded
	d.Failure = &status.Failure{Reason: "Unreachable", Cause: "tcp", Kind: "Fault", Since: *at(202 * time.Second), LossTime: &loss, Text: away}
	condition(d, status.KeyAvailable, status.Unknown, "Unreachable", away)
	condition(d, status.IsDegraded, status.True, "Unreachable", "Unreachable: "+away)
	return d
}

func lost(d *status.Document) *status.Document {
	purge := now.Add(90 * 24 * time.Hour)
	d.Phase = status.Lost
	text := "kvlab.vault.azure.net, key k1: the key is deleted, and can be recovered until 2027-03-01T12:00:00Z (http 404, KeyNotFound); recover it (az keyvault key recover), do not purge it"
	d.Answer = status.Answer{Text: "KeyDeleted: " + text}
	d.Failure = &status.Failure{Reason: "KeyDeleted", Kind: "KeyState", Since: *at(3 * time.Hour), LossTime: at(3*time.Hour - 15*time.Second), ScheduledPurgeTime: &purge, Text: text}
	condition(d, status.KeyAvailable, status.False, "KeyDeleted", text)
	condition(d, status.EncryptionReady, status.False, "KeyDeleted", text)
	condition(d, status.DecryptionReady, status.False, "KeyDeleted", text)
	condition(d, status.IsDegraded, status.True, "KeyDeleted", text)
	d.Alarms = []status.Alarm{{Severity: status.Critical, Reason: "KeyDeleted", Text: "writes are refused, so restart no kube-apiserver: " + text}}
	return d
}

func item(d *status.Document) status.Item {
	return status.Item{Source: "http://" + d.Instance.Node + ":8787/status", Document: d}
}

func unread(source string, reason status.Unread, text string) status.Item {
	return status.Item{Source: source, Reason: reason, Error: text}
}

func edit(d *status.Document, change func(*status.Document)) *status.Document {
	change(d)
	return d
}

// What lists look like, and the exit status that each stands for.
func TestList(t *testing.T) {
	oldVersion := func(d *status.Document) {
		d.Alarms = []status.Alarm{
			{Severity: status.Critical, Reason: "KeyDisabled", Version: older, Text: "the version is disabled and data is under it: enable it, restart nothing"},
			{Severity: status.Warning, Reason: "KeyExpires", Version: newer, Text: "the version expires in 12 days: make a new one"},
		}
		condition(d, status.DecryptionReady, status.False, "KeyDisabled", "version "+older+" cannot be read")
	}
	stale := func(d *status.Document) { d.ObservedTime = *at(195 * time.Minute) }
	ahead := func(d *status.Document) { d.ObservedTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) }
	starting := func(d *status.Document) {
		d.Phase, d.KeyID, d.Keys = status.Starting, "", nil
		d.Answer = status.Answer{Text: "Starting: the first answer of the vault has not come yet"}
		condition(d, status.KeyAvailable, status.Unknown, "Starting", "nothing is known yet")
	}
	silent := func(d *status.Document) { // an outage that has outlasted its grace
		degraded(d)
		d.Phase, d.Failure.Since, d.Failure.LossTime = status.Lost, *at(26 * time.Hour), at(2*time.Hour)
		d.Answer = status.Answer{Text: "Unreachable: " + away}
	}
	startingIll := func(d *status.Document) {
		starting(d)
		d.Failure = &status.Failure{Reason: "Unreachable", Cause: "tcp", Kind: "Fault", Since: *at(time.Minute), LossTime: at(-24 * time.Hour), Text: away}
	}
	for name, tc := range map[string]struct {
		exit  int
		items []status.Item
	}{
		"silent past its grace": {2, []status.Item{item(edit(document(1, newer), silent))}},
		"starting in an outage": {3, []status.Item{item(edit(document(1, newer), startingIll))}},
		"one":                   {0, []status.Item{item(document(1, newer))}},
		"three":                 {0, []status.Item{item(document(1, newer)), item(document(2, newer)), item(document(3, newer))}},
		"one degraded":          {1, []status.Item{item(document(1, newer)), item(degraded(document(2, newer))), item(document(3, newer))}},
		"one lags":              {1, []status.Item{item(document(1, newer)), item(document(2, older)), item(document(3, newer))}},
		"one ahead":             {1, []status.Item{item(document(1, older)), item(document(2, newer)), item(document(3, older))}},
		"nobody knows the age":  {1, []status.Item{item(edit(document(1, newer), ageless)), item(edit(document(2, older), ageless))}},
		"different keys":        {1, []status.Item{item(document(1, newer)), item(edit(document(2, older), func(d *status.Document) { d.Key += "x" }))}},
		"lost":                  {2, []status.Item{item(document(1, newer)), item(lost(document(2, newer)))}},
		"lost and unread": {2, []status.Item{
			item(lost(document(1, newer))), unread("http://node-2:8787/status", status.Refused, "nothing listens there: is the plugin running, and is --healthz-port the one?"),
		}},
		"unread": {3, []status.Item{
			item(degraded(document(1, newer))), unread("http://10.123.45.67:18787/status", status.TimedOut, "no answer within 3s"),
			unread("/var/lib/azure-kms/a/long/way/down/status.json", status.NoSuchFile, "there is no such file"),
		}},
		"stale": {3, []status.Item{
			{Source: "/var/lib/azure-kms/status.json", Document: edit(lost(document(1, newer)), stale)}, item(document(2, newer)),
		}},
		"all but one lost": {2, []status.Item{item(lost(document(1, newer))), item(document(2, newer)), item(lost(document(3, older)))}},
		"ahead": {3, []status.Item{
			{Source: "/var/lib/azure-kms/status.json", Document: edit(document(1, newer), ahead)}, item(document(2, newer)),
		}},
		"incomplete":      {3, []status.Item{item(edit(document(1, newer), func(d *status.Document) { d.Keys, d.Conditions = nil, nil }))}},
		"ahead and not":   {0, []status.Item{{Source: "/run/kms/status.json", Document: edit(document(1, newer), ahead)}, item(document(1, newer))}},
		"starting":        {3, []status.Item{item(edit(document(1, newer), starting)), item(document(2, newer))}},
		"an alarm":        {1, []status.Item{item(edit(document(1, newer), oldVersion))}},
		"two ways to one": {0, []status.Item{item(document(1, newer)), {Source: "http://10.0.0.1:8787/status", Document: document(1, newer)}}},
		"two ways to a degraded": {1, []status.Item{
			{Source: "/run/kms/status.json", Document: degraded(document(1, newer))},
			{Source: "http://10.0.0.1:8787/status", Document: edit(degraded(document(1, newer)), func(d *status.Document) { d.ObservedTime = *at(time.Second) })},
		}},
		"a file and the URL": {0, []status.Item{{Source: "/run/kms/status.json", Document: edit(document(1, newer), stale)}, item(document(1, newer))}},
		"two on one node": {1, []status.Item{
			item(document(1, newer)),
			{Source: "http://node-1:8788/status", Document: edit(document(2, older), func(d *status.Document) { d.Instance.Node = "node-1"; d.Instance.ID = "11111111-bbbb" })},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := status.NewList(now, tc.items)
			var out bytes.Buffer
			console.WriteList(&out, l)
			fmt.Fprintf(&out, "\nexit status %d\n", l.Summary.ExitStatus)
			golden(t, strings.ReplaceAll(name, " ", "-")+".txt", out.String())
			require.Equal(t, tc.exit, l.Summary.ExitStatus)
			for line := range strings.Lines(out.String()) {
				require.LessOrEqual(t, utf8.RuneCountInString(line), 81, "wider than a terminal: %s", line)
			}
		})
	}
}

func ageless(d *status.Document) { d.Keys[0].CreatedTime = nil }

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// The gravest decides, whatever the order of the arguments.
func TestList_ExitStatusOfSeveral(t *testing.T) {
	parts := map[int]status.Item{
		0: item(document(1, newer)), 1: item(degraded(document(2, newer))),
		2: item(lost(document(3, newer))), 3: unread("x", status.NotRead, "y"),
	}
	order := []int{0, 1, 3, 2}
	for i, a := range order {
		for j, b := range order {
			l := status.NewList(now, []status.Item{parts[a], parts[b]})
			require.Equal(t, order[max(i, j)], l.Summary.ExitStatus, "%d and %d", a, b)
		}
	}
}

// Distinct instances are counted, not URLs.
func TestList_Counts(t *testing.T) {
	nameless := func(n int) *status.Document {
		return edit(document(n, newer), func(d *status.Document) { d.Instance.ID = "" })
	}
	l := status.NewList(now, []status.Item{
		item(document(1, newer)), item(document(1, newer)), item(document(2, newer)), unread("x", status.NotRead, "y"), item(nameless(4)), item(nameless(4)),
	})
	require.Equal(t, 4, l.Summary.Replicas)
	require.Equal(t, 1, l.Summary.Unreadable)
	require.Zero(t, l.Summary.Stale)
	require.Len(t, l.Summary.Writers, 1)
	require.Equal(t, newer, l.Summary.Writers[0].Version)
	require.Len(t, l.Summary.Writers[0].Nodes, 4)
}

// What a program reads has the documents as they are.
func TestList_JSON(t *testing.T) {
	items := []status.Item{item(degraded(document(1, newer))), unread("/x", status.NoSuchFile, "there is none")}
	var out bytes.Buffer
	require.NoError(t, console.WriteJSON(&out, status.NewList(now, items)))
	golden(t, "list.json", out.String())
	var l status.List
	require.NoError(t, json.Unmarshal(out.Bytes(), &l))
	require.Equal(t, items, l.Items)
	require.Equal(t, "azure-kms-plugin/v1", l.APIVersion)
	require.Equal(t, "KMSPluginStatusList", l.Kind)
}

// A server that is not ours may send what a terminal obeys: to clear it, to set its
// title, to write backwards. None of that gets through, in either form.
func TestList_NothingForATerminal(t *testing.T) {
	const evil = "a\x1b[2J\x1b]0;t\x07b\u009bH\u202ec\r\nd\x00\xff\u2028\U000e0001e"
	d := lost(document(1, newer))
	for _, s := range []*string{
		&d.Instance.ID, &d.Instance.Node, &d.Instance.Version, &d.Key, &d.KeyID, &d.Answer.Text, &d.Failure.Reason, &d.Failure.Cause, &d.Failure.Text,
		&d.Keys[0].Version, &d.Keys[0].KeyID,
	} {
		*s = evil
	}
	d.Phase = evil
	d.Conditions = append(d.Conditions, status.Condition{Type: evil, Status: evil, Reason: evil, Message: evil + " "})
	d.Alarms = []status.Alarm{{Severity: evil, Reason: evil, Version: evil, Text: evil}}
	// As it comes from outside.
	data, err := json.Marshal(d)
	require.NoError(t, err)
	data = bytes.ReplaceAll(data, []byte(`\ufffd`), []byte{0xff})
	read, err := status.Decode(bytes.NewReader(data))
	require.NoError(t, err)
	old := edit(document(2, newer), func(d *status.Document) { d.Phase, d.ObservedTime = evil, *at(time.Hour) })
	l := status.NewList(now, []status.Item{{Source: evil, Document: read}, unread(evil, evil, evil), {Source: evil, Document: old}})
	var table, js bytes.Buffer
	console.WriteList(&table, l)
	require.NoError(t, console.WriteJSON(&js, l))
	for _, out := range []string{table.String(), js.String()} {
		require.True(t, utf8.ValidString(out))
		for _, r := range out {
			require.True(t, r == '\n' || unicode.IsPrint(r), "%U in %q", r, out)
		}
	}
	var back status.List
	require.NoError(t, json.Unmarshal(js.Bytes(), &back))
	require.Equal(t, read.Failure.Text, back.Items[0].Document.Failure.Text, "the JSON means the same")
}

// Nor does a server flood the terminal.
func TestList_Bounded(t *testing.T) {
	d := document(1, newer)
	d.Instance.Node, d.Instance.ID = strings.Repeat("n", 10000), strings.Repeat("i", 10000)
	for range 1000 {
		d.Alarms = append(d.Alarms, status.Alarm{Severity: status.Critical, Reason: "R", Text: strings.Repeat("x", 1000)})
		d.Conditions = append(d.Conditions, status.Condition{Type: "T", Message: strings.Repeat("y", 1000)})
	}
	var out bytes.Buffer
	console.WriteList(&out, status.NewList(now, []status.Item{item(d)}))
	require.Less(t, out.Len(), 60_000)
	require.Contains(t, out.String(), "and 980 more alarms")
}
