package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"azure-kms-plugin/health/console"
	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// APIVersion and Kind are what every report says of itself.
const (
	APIVersion = status.APIVersion
	Kind       = "KMSPluginDoctorReport"
)

// A Report is what a walk has seen.
type Report struct {
	APIVersion   string    `json:"apiVersion"`
	Kind         string    `json:"kind"`
	ObservedTime time.Time `json:"observedTime"`
	// Key is the URL of the key or version that was looked at.
	Key        string `json:"key"`
	ExitStatus int    `json:"exitStatus"`
	Text       string `json:"text"` // the conclusion
	Steps      []Step `json:"steps"`
}

// A Step is one look.
type Step struct {
	Name  Name  `json:"name"`
	State State `json:"state"`
	// Reason and Cause are those of package keyvault, for a step that failed or
	// whose refusal is only a note.
	Reason keyvault.Reason `json:"reason,omitempty"`
	Cause  keyvault.Cause  `json:"cause,omitempty"`
	Text   string          `json:"text"`
	// Remedy is what to do, if the text does not say it.
	Remedy string `json:"remedy,omitempty"`
}

// A Name names a step. The list is closed; a walk has those that apply, in this order.
type Name string

// The steps.
const (
	Files      Name = "files" // flags, azure.json and what these name
	DNS        Name = "dns"
	TCP        Name = "tcp"
	Proxy      Name = "proxy" // that of HTTPS_PROXY, if there is one
	TLS        Name = "tls"
	Clock      Name = "clock"
	Token      Name = "token"
	SignInDNS  Name = "sign-in dns" // these three only if there is no token
	SignInTCP  Name = "sign-in tcp"
	SignInTLS  Name = "sign-in tls"
	Attributes Name = "attributes"
	Validity   Name = "validity"
	Encrypt    Name = "encrypt"
	Decrypt    Name = "decrypt"
	Socket     Name = "socket"
)

// A State says what a step means.
type State string

// The states.
const (
	OK      State = "ok"
	Note    State = "note" // worth knowing, nothing to do
	Warn    State = "warn" // it works, and somebody has to act
	Fail    State = "fail"
	Skipped State = "skipped" // not reached
)

// failure is the first step that failed; nil if none did. Steps of the sign-in host
// explain the failed token, and are none of their own.
func (r *Report) failure() *Step {
	i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.State == Fail && !strings.HasPrefix(string(s.Name), "sign-in ") })
	if i < 0 {
		return nil
	}
	return &r.Steps[i]
}

// conclude sets exit status and text.
func (r *Report) conclude() {
	warnings := 0
	for _, s := range r.Steps {
		if s.State == Warn {
			warnings++
		}
	}
	switch f := r.failure(); {
	case f != nil:
		r.ExitStatus, r.Text = verdict(*f)
	case warnings > 0:
		r.ExitStatus = status.ExitDegraded
		r.Text = fmt.Sprintf("The key can be used. Somebody has to act: see the steps with %q (%d).", Warn, warnings)
	default:
		r.ExitStatus = status.ExitUsable
		r.Text = "All is well: the key can be used."
	}
}

func verdict(f Step) (exit int, text string) {
	at := fmt.Sprintf("It ends at %q with %s: ", f.Name, f.Reason)
	switch f.Reason.Kind() {
	case keyvault.KindKeyState:
		return status.ExitLost, at + "the vault answers, and the key cannot be used as it is."
	case keyvault.KindRefusal:
		return status.ExitLost, at + refused(f.Reason)
	case keyvault.KindUnwritable:
		return status.ExitDegraded, at + "what is encrypted can be read, and nothing new can be encrypted."
	}
	return status.ExitUnknown, at + "whether the key can be used is not known."
}

func refused(r keyvault.Reason) string {
	switch r {
	case keyvault.VaultNotFound:
		return "the name does not exist. That stays so until it is mended."
	case keyvault.AccessDenied:
		return "somebody says no. That stays so until it is mended; a new permission takes minutes to work."
	}
	return "somebody says no. That stays so until it is mended."
}

// served adds what a plugin that is well says of a walk that is not: the way is there,
// and this shell does not take it.
func (r *Report) served() {
	f := r.failure()
	if f == nil {
		return
	}
	switch f.Reason.Kind() {
	case keyvault.KindRefusal, keyvault.KindFault:
		r.Text += " The plugin that serves here answers ok: does it have another environment (HTTPS_PROXY, SSL_CERT_FILE) or other flags?" +
			" If not, its grace is not over yet: see azure-kms-plugin status."
	}
}

// maxText bounds one text on a terminal.
const maxText = 1500

// WriteTable writes the report for people, a paragraph for each step.
func (r *Report) WriteTable(w io.Writer) {
	width := 0
	for _, s := range r.Steps {
		width = max(width, len(s.Name))
	}
	for _, s := range r.Steps {
		state := string(s.State)
		if s.State == Fail {
			state = "FAIL" // seen without colour
		}
		head := fmt.Sprintf("%-7s  %-*s  ", state, width, s.Name)
		text := s.Text
		if s.Reason != "" {
			text = string(s.Reason) + ": " + text
		}
		console.Wrap(w, head, console.Clean(text, maxText), 0)
		if s.Remedy != "" {
			console.Wrap(w, strings.Repeat(" ", len(head)), "-> "+console.Clean(s.Remedy, maxText), 0)
		}
	}
	fmt.Fprintln(w)
	console.Wrap(w, "", console.Clean(r.Text, maxText), 0)
}
