package page

import (
	"cmp"
	"fmt"
	"time"

	"azure-kms-plugin/health/status"
)

// Status is the page of one plugin, made from its document.
func Status(d *status.Document) []byte {
	tone, meaning := phase(d.Phase)
	state := string(d.Phase)
	if d.Failure != nil {
		state += " (" + d.Failure.Reason + ")"
	}
	p := New(Frame{
		Title:   state + " - " + d.Key + " - azure-kms-plugin",
		Heading: "azure-kms-plugin on " + d.Instance.Node + ", for the key " + d.Key,
		Made:    d.ObservedTime,
	})
	p.Banner(tone, cmp.Or(state, "Unknown"), meaning)
	p.failure(d.Failure)
	p.alarms(d.Alarms)
	p.told(d)
	p.conditions(d.Conditions)
	p.keys(d.Keys)
	p.rotation(d)
	p.clients(d)
	p.activity(d)
	p.tag(`<p>For programs: <a href="status">status</a>, <a href="livez?verbose">livez</a>, <a href="readyz?verbose">readyz</a>.</p>`)
	return p.Bytes()
}

// phase says how good a phase is and what it means for the cluster.
func phase(p status.Phase) (Tone, string) {
	switch p {
	case status.Starting:
		return Unknown, "Whether the key can be used is not known yet. kube-apiserver is told to wait."
	case status.Usable:
		return Good, "The key works. Secrets can be read and written."
	case status.Degraded:
		return Attention, "The key cannot be used as it should, and the cluster does not feel it yet: kube-apiserver goes on with what it holds in memory."
	case status.ReadOnly:
		return Attention, "The key still decrypts, and refuses to encrypt. Reads and API servers that run go on; one that is restarted cannot write secrets. Do not restart kube-apiserver before this is mended."
	case status.CutOff:
		return Bad, "Data that another API server has written cannot be opened here. kube-apiserver is told that this node is not ready, so that the others serve in its place."
	case status.Lost:
		return Bad, "The key is lost or refused. kube-apiserver is told so, and stops writing secrets until the key decrypts again. Do not restart kube-apiserver: it would forget what it can still read."
	}
	return Unknown, "This page does not know the state that it was given."
}

func (p *Page) failure(f *status.Failure) {
	if f == nil {
		return
	}
	p.Section("What is wrong, and what to do")
	p.Text(f.Text)
	kind := map[string]string{
		"KeyState": "the vault says so of the key", "Refusal": "the vault or the directory says no",
		"Fault": "no useful answer; says nothing about the key", "Unwritable": "the key refuses to encrypt",
	}[f.Kind]
	loss := "never: it is not a loss"
	if f.LossTime != nil {
		loss = p.When(f.LossTime) + ", if no decrypt succeeds before"
		if !f.LossTime.After(p.made) {
			loss = p.When(f.LossTime)
		}
	}
	p.Facts(
		Fact{"reason", f.Reason}, Fact{"kind", kind}, Fact{"cause", f.Cause}, Fact{"since", p.When(&f.Since)},
		Fact{"obeyed as a loss", loss}, Fact{"destroyed by the vault", p.When(f.ScheduledPurgeTime)},
	)
}

func (p *Page) alarms(alarms []status.Alarm) {
	if len(alarms) == 0 {
		return
	}
	p.Section("Alarms")
	for _, a := range alarms {
		tone := Attention
		if a.Severity == status.Critical {
			tone = Bad
		}
		head := string(a.Severity) + ": " + a.Reason
		if a.Version != "" {
			head += ", version " + a.Version
		}
		p.Note(tone, head, a.Text)
	}
}

// told is what the others see.
func (p *Page) told(d *status.Document) {
	p.Section("What kube-apiserver is told")
	if d.Answer.OK {
		p.Facts(Fact{"Status", "ok"}, Fact{"last proof that the key decrypts", cmp.Or(p.When(d.LastSuccessTime), "never")})
		return
	}
	p.Facts(Fact{"Status", "not ok: " + d.Answer.Text}, Fact{"last proof that the key decrypts", cmp.Or(p.When(d.LastSuccessTime), "never")})
}

func (p *Page) conditions(conditions []status.Condition) {
	p.Section("Conditions")
	var rows [][]Cell
	for _, c := range conditions {
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
		rows = append(rows, []Cell{
			Lines(string(c.Type)), Toned(tone, string(c.Status)), Lines(c.Reason, c.Message), Lines(p.When(&c.LastTransitionTime)),
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
