package console

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"azure-kms-plugin/health/status"
)

const (
	// maxText bounds one text of a document on a terminal, and maxLines the
	// conditions and alarms of one replica: a foreign server must not flood it.
	maxText  = 1500
	maxLines = 20
	// shortest is how much of an ID is shown at least.
	shortest = 8
)

// WriteList writes status documents for people: a row for each item, who writes under
// which key, and then what is not well and what to do about it.
func WriteList(w io.Writer, l *status.List) {
	now := l.Summary.ObservedTime
	rows := [][]string{{"NODE", "INSTANCE", "PHASE", "VERSION", "SINCE", "REASON"}}
	instance := shorter(l, func(d *status.Document) string { return d.Instance.ID })
	version := shorter(l, (*status.Document).WriteVersion)
	for _, item := range l.Items {
		rows = append(rows, row(item, now, instance, version))
	}
	Table(w, rows)
	fmt.Fprintln(w)
	for _, text := range l.Summary.Text {
		Wrap(w, "", Clean(text, maxText), 0)
	}
	for i, item := range l.Items {
		switch {
		case item.Document == nil || l.Newest(i):
			detail(w, item, now)
		case item.Document.Stale(now):
			fmt.Fprintf(w, "\n%s\n", name(item))
			Wrap(w, "  ", "A newer document of the same process was read too. Is this one still written?", 0)
		}
	}
}

// shorter returns what cuts an ID to as little as tells it from all others here.
func shorter(l *status.List, id func(*status.Document) string) func(*status.Document) string {
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
	return func(d *status.Document) string { return or(Clean(id(d)[:min(n, len(id(d)))], 2*n)) }
}

// row is one line of the table.
func row(i status.Item, now time.Time, instance, version func(*status.Document) string) []string {
	d := i.Document
	if d == nil {
		return []string{label(i.Source), "-", "unreadable", "-", "-", Clean(string(i.Reason), 40)}
	}
	row := []string{label(d.Instance.Node), instance(d), Clean(string(d.Phase), 20), version(d), "-", "-"}
	if d.Instance.Node == "" {
		row[0] = label(i.Source)
	}
	if f := d.Failure; f != nil {
		since := f.Since
		if d.Phase == status.Lost && f.LossTime != nil {
			since = *f.LossTime
		}
		row[4], row[5] = Age(d.ObservedTime.Sub(since)), short(f)
	} else if a, _ := d.Alarming(); a != nil && d.Phase == status.Usable {
		row[2], row[5] = row[2]+", alarm", Clean(a.Reason, 40)
	}
	switch {
	case d.Ahead(now):
		row[2], row[4], row[5] = "stale", "-", "clock ahead"
	case d.Stale(now):
		row[2], row[4], row[5] = "stale", Age(now.Sub(d.ObservedTime)), "was "+row[2]
	}
	return row
}

// short is the reason, with its cause where that is the half of it and fits.
func short(f *status.Failure) string {
	const limit = 22
	if s := full(f); len(s) <= limit {
		return s
	}
	return Clean(f.Reason, 40)
}

func full(f *status.Failure) string {
	s := f.Reason
	if f.Cause != "" {
		s += " (" + f.Cause + ")"
	}
	return Clean(s, 80)
}

// label is a name that leaves room for the other columns; its end is the telling part
// of a path.
func label(s string) string {
	const limit = 22
	s = strings.TrimSuffix(strings.TrimPrefix(s, "http://"), "/status")
	if r := []rune(Clean(s, 300)); len(r) > limit {
		return "..." + string(r[len(r)-limit+3:])
	}
	return or(Clean(s, 300))
}

func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// detail says what is not well with one item; nothing if all is.
func detail(w io.Writer, i status.Item, now time.Time) {
	var b bytes.Buffer
	switch d := i.Document; {
	case d == nil:
		Wrap(&b, "  ", Clean(i.Error, maxText), 0)
	default:
		switch {
		case d.StaleAfterSeconds == 0 && !d.Ahead(now):
			Wrap(&b, "  ", fmt.Sprintf("This is the last that it said, %s ago, at %s: it has been stopped.", Age(now.Sub(d.ObservedTime)), clock(d.ObservedTime)), 0)
		case d.Ahead(now):
			Wrap(&b, "  ", fmt.Sprintf("This says nothing about now: its clock is ahead of this machine's, %s where it is %s here. Set whichever of them is wrong.",
				clock(d.ObservedTime), clock(now)), 0)
		case d.Stale(now):
			Wrap(&b, "  ", fmt.Sprintf("This was so %s ago, at %s, and says nothing about now: the process that wrote it may be gone. Look whether it runs.",
				Age(now.Sub(d.ObservedTime)), clock(d.ObservedTime)), 0)
		}
		if d.Incomplete() {
			Wrap(&b, "  ", "This does not say whether all is well: its answer, keyID, keys or conditions are missing. Is it a plugin's document?", 0)
		}
		failing(&b, d)
		ill(&b, d)
		alarmed(&b, d)
	}
	if b.Len() == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n%s", name(i), b.String())
}

// name is the head of what is said of one item.
func name(i status.Item) string {
	s := Clean(i.Source, 300)
	if i.Document != nil && i.Document.Instance.Node != "" {
		s = Clean(i.Document.Instance.Node, 300) + ", " + s
	}
	return s
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// failing tells what stands between the plugin and its key.
func failing(w io.Writer, d *status.Document) {
	f := d.Failure
	if f == nil {
		if !d.Answer.OK {
			Wrap(w, "  ", "kube-apiserver is told: "+Clean(d.Answer.Text, maxText), 4)
		}
		return
	}
	head := fmt.Sprintf("%s: %s, failing since %s", d.Phase, full(f), clock(f.Since))
	if d.Phase == status.Lost && f.LossTime != nil {
		head += ", lost since " + clock(*f.LossTime)
	}
	Wrap(w, "  ", Clean(head, 300), 4)
	Wrap(w, "    ", Clean(f.Text, maxText), 0)
	Wrap(w, "    ", told(d), 0)
	if f.ScheduledPurgeTime != nil {
		Wrap(w, "    ", "the vault destroys the key at "+clock(*f.ScheduledPurgeTime), 0)
	}
	if f.OnTheWay() {
		Wrap(w, "    ", status.SeeDoctor, 0)
	}
}

// told says what kube-apiserver gets to know of the failure, and until when.
func told(d *status.Document) string {
	loss := d.Failure.LossTime
	switch {
	case d.Phase == status.Starting:
		return "kube-apiserver is told of it: Status fails until the first decrypt succeeds"
	case d.Phase == status.Lost:
		return "kube-apiserver is told of it: Status fails until a decrypt succeeds"
	}
	text := "kube-apiserver is told ok"
	if !d.Answer.OK {
		text = "kube-apiserver is told of it"
	}
	if loss != nil {
		text += fmt.Sprintf("; it counts as a loss from %s on, unless a decrypt succeeds before", clock(*loss))
	}
	return text
}

// good reports whether a condition is as it should be.
func good(c status.Condition) bool {
	if c.Type == status.IsDegraded {
		return c.Status == status.False
	}
	return c.Status == status.True
}

// ill tells of the conditions that are not good. A text that has been told, as that
// of the failure, is not repeated.
func ill(w io.Writer, d *status.Document) {
	var told []string
	if d.Failure != nil {
		told = append(told, d.Failure.Text)
	}
	lines := 0
	for _, c := range d.Conditions {
		if good(c) {
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
		Wrap(w, "  ", Clean(text, maxText), 4)
	}
}

// alarmed tells of the alarms, with what to do. The text of the failure has been told.
func alarmed(w io.Writer, d *status.Document) {
	for n, a := range d.Alarms {
		if n == maxLines {
			fmt.Fprintf(w, "  and %d more alarms\n", len(d.Alarms)-n)
			return
		}
		head := strings.ToUpper(string(a.Severity)) + " " + a.Reason
		if a.Version != "" {
			head += ", version " + a.Version
		}
		text := a.Text
		if f := d.Failure; f != nil && f.Text != "" {
			text = strings.Replace(text, f.Text, "see above", 1)
		}
		Wrap(w, "  ", Clean(head+": "+text, maxText), 4)
	}
}
