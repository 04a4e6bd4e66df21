package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"azure-kms-plugin/health/status"
)

// Status is the page of one plugin, made from its document.
func Status(d *status.Document) []byte {
	tone, state, sentences := summary(d)
	p := New(Frame{
		Title:   state + " - " + d.Key + " - azure-kms-plugin",
		Heading: "azure-kms-plugin on " + d.Instance.Node + ", for the key " + d.Key,
		Made:    d.ObservedTime,
	})
	p.Banner(tone, state, sentences...)
	p.failure(d)
	p.alarms(d)
	p.told(d)
	p.conditions(d)
	p.keys(d)
	p.rotation(d)
	p.clients(d)
	p.activity(d)
	p.tag(`<p>For programs: <a href="status">status</a>, <a href="livez?verbose">livez</a>, <a href="readyz?verbose">readyz</a>.</p>`)
	return p.Bytes()
}

func (p *Page) failure(d *status.Document) {
	f := d.Failure
	if f == nil {
		return
	}
	p.Section("What is wrong, and what to do")
	p.Text(f.Text)
	if f.OnTheWay() {
		p.Text(status.SeeDoctor)
	}
	kind := map[string]string{
		"KeyState": "the vault says so of the key", "Refusal": "the vault or the directory says no",
		"Fault": "no useful answer; says nothing about the key", "Unwritable": "the key refuses to encrypt",
	}[f.Kind]
	if f.Reason == "VaultNotFound" {
		kind = "the vault's name does not exist"
	}
	p.Facts(
		Fact{"reason", f.Reason}, Fact{"kind", kind}, Fact{"cause", f.Cause}, Fact{"failing since", p.When(&f.Since)},
		p.loss(d), Fact{"destroyed by the vault", p.When(f.ScheduledPurgeTime)},
	)
}

// loss is since when, or from when on, a failure counts as a loss.
func (p *Page) loss(d *status.Document) Fact {
	at := d.Failure.LossTime
	switch {
	case d.Phase == status.Starting:
		return Fact{"Status fails", "until the first decrypt succeeds"}
	case at == nil:
		return Fact{"counts as a loss", "never"}
	case d.Phase == status.Lost:
		return Fact{"lost since", p.When(at)}
	}
	return Fact{"counts as a loss from", p.When(at) + ", if no decrypt succeeds before"}
}

// briefly leaves out of a text what stands above it, as one page says it once.
func briefly(text string, above ...string) string {
	for _, s := range above {
		if s != "" {
			text = strings.ReplaceAll(text, s, "see above")
		}
	}
	return text
}

// failing is the text of the failure; empty for none.
func failing(d *status.Document) string {
	if d.Failure == nil {
		return ""
	}
	return d.Failure.Text
}

func (p *Page) alarms(d *status.Document) {
	if len(d.Alarms) == 0 {
		return
	}
	p.Section("Alarms")
	for _, a := range d.Alarms {
		tone := Attention
		if a.Severity == status.Critical {
			tone = Bad
		}
		head := string(a.Severity) + ": " + a.Reason
		if a.Version != "" {
			head += ", version " + a.Version
		}
		p.Note(tone, head, briefly(a.Text, failing(d)))
	}
}

// told is what the others see.
func (p *Page) told(d *status.Document) {
	p.Section("What kube-apiserver is told")
	answer := "ok"
	if !d.Answer.OK {
		answer = "not ok: " + briefly(d.Answer.Text, failing(d))
	}
	p.Facts(Fact{"Status", answer}, Fact{"last proof that the key decrypts", cmp.Or(p.When(d.LastSuccessTime), "never")})
}

func (p *Page) conditions(d *status.Document) {
	p.Section("Conditions")
	above := []string{failing(d)}
	for _, a := range d.Alarms {
		above = append(above, a.Text)
	}
	var rows [][]Cell
	for _, c := range d.Conditions {
		good := status.True
		if c.Type == status.IsDegraded {
			good = status.False
		}
		tone := Bad
		switch {
		case c.Status == status.Unknown:
			tone = Unknown
		case c.Status == good:
			tone = Good
		case c.Type == status.KeyRotated, c.Type == status.IsDegraded:
			tone = Attention
		}
		message := c.Message
		if slices.ContainsFunc(above, func(s string) bool { return s != "" && strings.Contains(message, s) }) {
			message = "see above"
		}
		rows = append(rows, []Cell{
			Lines(string(c.Type)), Toned(tone, string(c.Status)), Lines(c.Reason, message), Lines(p.When(&c.LastTransitionTime)),
		})
	}
	p.Table([]string{"condition", "status", "reason", "since"}, rows)
}

func (p *Page) activity(d *status.Document) {
	p.Section("Activity")
	a, c, i := d.Activity, d.Credentials, d.Instance
	metadata := "allowed"
	if !a.MetadataAccess {
		metadata = "denied: dates of the key are not known"
	}
	p.Facts(
		Fact{"last decrypt to probe", p.When(a.LastDecryptProbeTime)}, Fact{"last look at the key", p.When(a.LastGetProbeTime)},
		Fact{"last look for newer versions", p.When(a.LastPollTime)}, Fact{"attributes of the key", metadata},
		Fact{"without the key, in all", span(time.Duration(a.OutageSeconds * float64(time.Second)))},
	)
	p.Section("Sign-in")
	p.Facts(
		Fact{"method", c.Method}, Fact{"certificate expires", p.When(c.ExpiryTime)},
		Fact{"changed files taken over", fmt.Sprint(c.Reloads)},
	)
	p.Section("This process")
	p.Facts(
		Fact{"node", i.Node}, Fact{"socket", i.Socket}, Fact{"process ID", fmt.Sprint(i.PID)}, Fact{"started", p.When(&i.StartTime)},
		Fact{"version", i.Version}, Fact{"instance", i.ID}, Fact{"boot of the machine", i.BootID},
	)
}
