package doctor

import (
	"context"
	"errors"
	"time"

	"azure-kms-plugin/keyvault"
)

// stepTime bounds one step: more than the plugin gives any call.
const stepTime = 10 * time.Second

// A Vault does what the plugin does with a key.
type Vault interface {
	Get(ctx context.Context, ref keyvault.Ref) (keyvault.Attributes, error)
	Encrypt(ctx context.Context, ref keyvault.Ref, plaintext []byte) ([]byte, error)
	Decrypt(ctx context.Context, ref keyvault.Ref, block []byte) ([]byte, error)
}

// A Way leads to a host.
type Way interface {
	Resolve(ctx context.Context) (keyvault.Route, error)
	Connect(ctx context.Context) (address string, err error)
	Exchange(ctx context.Context) (keyvault.Exchange, error)
}

// A Config says what to look at.
type Config struct {
	// Files are the steps that were done before: flags and files.
	Files []Step
	// Key is the version to use; without one, it is the newest.
	Key keyvault.Ref
	// ActivationDelay is how long a plugin waits before it writes with a newer
	// version; only looked at if Key has no version.
	ActivationDelay time.Duration
	// Vault must fetch its tokens from Tokens.
	Vault  Vault
	Tokens *Tokens
	// Way leads to the vault and SignIn to the sign-in host, whose name is
	// SignInHost; SignIn is nil if a service of this machine gives the tokens.
	Way        Way
	SignIn     Way
	SignInHost string
	// Socket is the path of the plugin's socket, which begins with @ for an abstract one.
	Socket string
}

// A walk is under way.
type walk struct {
	Config
	ctx    context.Context
	report *Report
	// ended is set by the first step that failed.
	ended bool
	// served: the Status of a plugin at the socket is ok.
	served bool

	key        keyvault.Ref // with its version, once that is known
	attributes *keyvault.Attributes
	encrypted  []byte
	random     []byte
}

// Walk looks at everything, in order, until ctx ends.
func Walk(ctx context.Context, cfg Config) *Report {
	w := &walk{Config: cfg, ctx: ctx, key: cfg.Key, report: &Report{
		APIVersion: APIVersion, Kind: Kind, ObservedTime: time.Now().UTC(), Key: cfg.Key.URL(), Steps: cfg.Files,
	}}
	w.network()
	w.step(w.token, Token, Attributes)
	w.step(w.validity, Validity)
	w.step(w.encrypt, Encrypt)
	w.step(w.decrypt, Decrypt)
	if w.ctx.Err() == nil {
		w.bounded(w.socket)
	} else {
		w.add(noted(Socket, Skipped, "not reached in time"))
	}
	w.report.Key = w.key.URL()
	w.report.conclude()
	if w.served {
		w.report.served()
	}
	return w.report
}

// add puts steps on record. The first failure ends the walk.
func (w *walk) add(steps ...Step) {
	for _, s := range steps {
		w.ended = w.ended || s.State == Fail
		w.report.Steps = append(w.report.Steps, s)
	}
}

// step does a part of the walk, or puts on record that its steps were not reached.
func (w *walk) step(do func(context.Context), names ...Name) {
	if !w.ended && w.ctx.Err() == nil {
		w.bounded(do)
		return
	}
	if !w.ended {
		w.add(w.outOfTime(names[0]))
		names = names[1:]
	}
	for _, name := range names {
		w.add(notReached(name))
	}
}

// outOfTime is a step that the end of the walk's own time has kept from being done.
func (w *walk) outOfTime(name Name) Step {
	if errors.Is(w.ctx.Err(), context.Canceled) {
		return Step{Name: name, State: Fail, Reason: keyvault.Canceled, Text: "interrupted before this step"}
	}
	return Step{Name: name, State: Fail, Reason: keyvault.Unreachable, Cause: keyvault.CauseTimeout, Text: "the time for all steps was up before this one: something on the way is slow"}
}

func notReached(name Name) Step {
	return Step{Name: name, State: Skipped, Text: "not reached"}
}

func (w *walk) bounded(do func(context.Context)) {
	ctx, cancel := context.WithTimeout(w.ctx, stepTime)
	defer cancel()
	do(ctx)
}

// failed is a step that err ended.
func failed(name Name, err error) Step {
	s := Step{Name: name, State: Fail, Reason: keyvault.ReasonOf(err), Text: err.Error()}
	if e, ok := errors.AsType[*keyvault.Error](err); ok {
		s.Cause, s.Text = e.Cause, e.Text
	}
	return s
}

// noted is what was seen.
func noted(name Name, state State, text string) Step {
	return Step{Name: name, State: state, Text: text}
}
