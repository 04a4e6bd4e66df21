package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"azure-kms-plugin/health/internal/console"
)

const (
	// maxText bounds one text of a document on a terminal, and maxLines the
	// conditions and alarms of one replica: a foreign server must not flood it.
	maxText  = 1500
	maxLines = 20
	// shortest is how much of an ID is shown at least.
	shortest = 8
)

// WriteJSON writes the list for programs.
func (l *List) WriteJSON(w io.Writer) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(l); err != nil {
		return err
	}
	_, err := w.Write(console.CleanJSON(b.Bytes()))
	return err
}

// WriteTable writes the list for people: a row for each item, who writes under which
// key, and then what is not well and what to do about it.
func (l *List) WriteTable(w io.Writer) {
	now := l.Summary.ObservedTime
	rows := [][]string{{"NODE", "INSTANCE", "PHASE", "VERSION", "SINCE", "REASON"}}
	instance := l.shorter(func(d *Document) string { return d.Instance.ID })
	version := l.shorter((*Document).WriteVersion)
	for _, item := range l.Items {
		rows = append(rows, item.row(now, instance, version))
	}
	console.Table(w, rows)
	fmt.Fprintln(w)
	for _, text := range l.Summary.Text {
		console.Wrap(w, "", console.Clean(text, maxText), 0)
	}
	told := map[*Document]bool{}
	for _, r := range replicas(l.Items) {
		told[r.doc] = true
	}
	for _, item := range l.Items {
		switch {
		case item.Document == nil || told[item.Document]:
			item.detail(w, now)
		case item.Document.Stale(now):
			fmt.Fprintf(w, "\n%s\n", item.name())
			console.Wrap(w, "  ", "A newer document of the same process was read too. Is this one still written?", 0)
		}
	}
}

// shorter returns what cuts an ID to as little as tells it from all others here.
func (l *List) shorter(id func(*Document) string) func(*Document) string {
	n := shortest
	for i, a := range l.Items {
		for _, b := range l.Items[i+1:] {
			if a.Document == nil || b.Document == nil {
				continue
			}
			x, y := id(a.Document), id(b.Document)
			for x != y && n < max(len(x), len(y)) && x[:min(n, len(x))] == y[:min(n, len(y))] {
				n++
			}
		}
	}
	return func(d *Document) string { return or(console.Clean(id(d)[:min(n, len(id(d)))], 2*n)) }
}

// row is one line of the table.
func (i Item) row(now time.Time, instance, version func(*Document) string) []string {
	d := i.Document
	if d == nil {
		return []string{label(i.Source), "-", "unreadable", "-", "-", console.Clean(string(i.Reason), 40)}
	}
	row := []string{label(d.Instance.Node), instance(d), console.Clean(string(d.Phase), 20), version(d), "-", "-"}
	if d.Instance.Node == "" {
		row[0] = label(i.Source)
	}
	if f := d.Failure; f != nil {
		row[4], row[5] = console.Age(d.ObservedTime.Sub(f.Since)), short(f)
	}
	if d.Stale(now) {
		row[2], row[4], row[5] = "stale", console.Age(now.Sub(d.ObservedTime)), "was "+row[2]
	}
	return row
}

// short is the reason, with its cause where that is the half of it and fits.
func short(f *Failure) string {
	const limit = 22
	if s := full(f); len(s) <= limit {
		return s
	}
	return console.Clean(f.Reason, 40)
}

func full(f *Failure) string {
	s := f.Reason
	if f.Cause != "" {
		s += " (" + f.Cause + ")"
	}
	return console.Clean(s, 80)
}

// label is a name that leaves room for the other columns; its end is the telling part
// of a path.
func label(s string) string {
	const limit = 22
	s = strings.TrimSuffix(strings.TrimPrefix(s, "http://"), "/status")
	if r := []rune(console.Clean(s, 300)); len(r) > limit {
		return "..." + string(r[len(r)-limit+3:])
	}
	return or(console.Clean(s, 300))
}

func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// detail says what is not well with one item; nothing if all is.
func (i Item) detail(w io.Writer, now time.Time) {
	var b bytes.Buffer
	switch d := i.Document; {
	case d == nil:
		console.Wrap(&b, "  ", console.Clean(i.Error, maxText), 0)
	default:
		if d.Stale(now) {
			console.Wrap(&b, "  ", fmt.Sprintf("This was so %s ago, at %s, and says nothing about now: the process that wrote it may be gone. Look whether it runs.",
				console.Age(now.Sub(d.ObservedTime)), clock(d.ObservedTime)), 0)
		}
		d.failing(&b)
		d.ill(&b)
		d.alarmed(&b)
	}
	if b.Len() == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n%s", i.name(), b.String())
}

// name is the head of what is said of one item.
func (i Item) name() string {
	name := console.Clean(i.Source, 300)
	if i.Document != nil && i.Document.Instance.Node != "" {
		name = console.Clean(i.Document.Instance.Node, 300) + ", " + name
	}
	return name
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// failing tells what stands between the plugin and its key.
func (d *Document) failing(w io.Writer) {
	told := "kube-apiserver is told ok"
	if !d.Answer.OK {
		told = "kube-apiserver is told of it"
	}
	f := d.Failure
	if f == nil {
		if !d.Answer.OK {
			console.Wrap(w, "  ", "kube-apiserver is told: "+console.Clean(d.Answer.Text, maxText), 4)
		}
		return
	}
	head := fmt.Sprintf("%s since %s: %s", d.Phase, clock(f.Since), full(f))
	console.Wrap(w, "  ", console.Clean(head, 300), 4)
	console.Wrap(w, "    ", console.Clean(f.Text, maxText), 0)
	switch {
	case f.LossTime != nil && d.Phase == Lost:
		told += fmt.Sprintf("; it counts as a loss since %s, until a decrypt succeeds", clock(*f.LossTime))
	case f.LossTime != nil:
		told += fmt.Sprintf("; it counts as a loss from %s on, unless a decrypt succeeds before", clock(*f.LossTime))
	}
	console.Wrap(w, "    ", told, 0)
	if f.ScheduledPurgeTime != nil {
		console.Wrap(w, "    ", "the vault destroys the key at "+clock(*f.ScheduledPurgeTime), 0)
	}
}

// good reports whether a condition is as it should be.
func (c Condition) good() bool {
	if c.Type == IsDegraded {
		return c.Status == False
	}
	return c.Status == True
}

// ill tells of the conditions that are not good. A text that has been told, as that
// of the failure, is not repeated.
func (d *Document) ill(w io.Writer) {
	var told []string
	if d.Failure != nil {
		told = append(told, d.Failure.Text)
	}
	lines := 0
	for _, c := range d.Conditions {
		if c.good() {
			continue
		}
		if lines++; lines > maxLines {
			fmt.Fprintln(w, "  and more conditions")
			return
		}
		text := fmt.Sprintf("%s is %s: %s", c.Type, c.Status, c.Reason)
		if c.Message != "" && !slices.ContainsFunc(told, func(s string) bool { return strings.Contains(c.Message, s) && s != "" }) {
			text += ": " + c.Message
			told = append(told, c.Message)
		}
		console.Wrap(w, "  ", console.Clean(text, maxText), 4)
	}
}

// alarmed tells of the alarms, with what to do.
func (d *Document) alarmed(w io.Writer) {
	for n, a := range d.Alarms {
		if n == maxLines {
			fmt.Fprintf(w, "  and %d more alarms\n", len(d.Alarms)-n)
			return
		}
		text := strings.ToUpper(string(a.Severity)) + " " + a.Reason
		if a.Version != "" {
			text += ", version " + a.Version
		}
		console.Wrap(w, "  ", console.Clean(text+": "+a.Text, maxText), 4)
	}
}
