package page

import (
	"cmp"
	"fmt"
	"strings"

	"azure-kms-plugin/health/status"
)

func (p *Page) keys(d *status.Document) {
	p.Section("Key versions")
	if len(d.Keys) == 0 {
		p.Text("None is known yet.")
		return
	}
	var rows [][]Cell
	for _, k := range d.Keys {
		role := map[status.Role]string{
			status.RoleWrite: "write: new data is written under it",
			status.RoleNext:  "next: newer than the one that writes",
			status.RoleRead:  "read: older data may be under it",
		}[k.Role]
		rows = append(rows, []Cell{
			Lines(k.Version, k.URL, "key ID "+k.KeyID), Lines(cmp.Or(role, string(k.Role))), p.vaultSays(k, d), p.use(k),
		})
	}
	p.Table([]string{"version", "role", "in the vault", "used by kube-apiserver"}, rows)
}

// dated is a name and a moment, if there is one.
func dated(name, when string) string {
	if when == "" {
		return ""
	}
	return name + " " + when
}

// gone is why an older look at a version proves nothing any more: the vault has not
// had the key since. Empty if it has, or for another key.
func gone(k status.Key, d *status.Document) string {
	f := d.Failure
	if f == nil || f.Reason != "KeyDeleted" && f.Reason != "KeyNotFound" || k.AttributesTime != nil && k.AttributesTime.After(f.Since) {
		return ""
	}
	if prefix := d.Key + "/"; len(k.URL) < len(prefix) || !strings.EqualFold(k.URL[:len(prefix)], prefix) {
		return ""
	}
	return f.Reason
}

func (p *Page) vaultSays(k status.Key, d *status.Document) Cell {
	more := []string{
		dated("created", p.When(k.CreatedTime)), dated("not before", p.When(k.NotBeforeTime)), dated("expires", p.When(k.ExpiryTime)),
		dated("destroyed", p.When(k.ScheduledPurgeTime)), dated("recovery:", k.RecoveryLevel), dated("seen", p.When(k.AttributesTime)),
	}
	word, tone := "not asked", Unknown
	switch {
	case k.Reason != "":
		word, tone = "cannot be used: "+k.Reason, Bad
	case gone(k, d) != "" && k.Enabled != nil && *k.Enabled:
		word, tone = gone(k, d)+"; enabled when last seen", Attention
	case k.Enabled != nil && *k.Enabled:
		word, tone = "enabled", Good
	case k.Enabled != nil:
		word, tone = "disabled", Bad
	}
	return Toned(tone, append([]string{word}, more...)...)
}

func (p *Page) use(k status.Key) Cell {
	failures := ""
	if k.Failures > 0 {
		failures = fmt.Sprintf("%d failed", k.Failures)
	}
	return Lines(
		fmt.Sprintf("%d encrypts, %d decrypts", k.Encrypts, k.Decrypts), failures,
		dated("last encrypt", p.When(k.LastEncryptTime)), dated("last decrypt", p.When(k.LastDecryptTime)),
	)
}

func (p *Page) rotation(d *status.Document) {
	p.Section("Rotation")
	follows := "The newest version is followed."
	if !d.Following {
		follows = "The version is pinned: it changes when the plugin is told to use another."
	}
	p.Text(follows)
	r := d.Rotation
	if r == nil {
		return
	}
	state := map[status.RotationState]string{
		status.RotationPending: "Pending: the new version is known and does not write yet",
		status.RotationWaiting: "Waiting: the new version is due and cannot write",
		status.RotationAdopted: "Adopted: the new version writes. Whether old data has been rewritten is not told here",
		status.RotationPinned:  "Pinned: there is a newer version than the one that is pinned",
	}[r.State]
	p.Facts(
		Fact{"state", cmp.Or(state, string(r.State))}, Fact{"from", r.From}, Fact{"to", r.To}, Fact{"known since", p.When(r.StartedTime)},
		Fact{"writes from", p.When(r.DueTime)}, Fact{"adopted", p.When(r.CompletionTime)},
	)
}

func (p *Page) clients(d *status.Document) {
	p.Section("Who is connected")
	if len(d.Clients) == 0 {
		p.Text("Nobody. A kube-apiserver that uses this plugin is connected all the time.")
		return
	}
	version := map[string]string{}
	for _, k := range d.Keys {
		version[k.KeyID] = "version " + k.Version
	}
	var rows [][]Cell
	for _, c := range d.Clients {
		name := "asks for the state only"
		if c.APIServer {
			name = "kube-apiserver"
		}
		if c.PID != 0 {
			name += fmt.Sprintf(", process %d", c.PID)
		}
		told := "nothing yet"
		if c.KeyID != "" {
			told = cmp.Or(version[c.KeyID], "key ID "+c.KeyID)
		}
		rows = append(rows, []Cell{Lines(name), Lines(told), Lines(p.When(&c.Since))})
	}
	p.Table([]string{"client", "last told", "since"}, rows)
	if more := d.ClientCount - len(d.Clients); more > 0 {
		p.Text(fmt.Sprintf("And %d more connections.", more))
	}
}
