package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"azure-kms-plugin/health/console"
	"azure-kms-plugin/keyvault"
)

// token asks for the key's attributes, by which the vault says which token it wants.
// Without one, the way to the sign-in host is looked at.
func (w *walk) token(ctx context.Context) {
	a, err := w.Vault.Get(keyvault.Background(ctx), w.Key)
	reason := keyvault.ReasonOf(err)
	got := w.Tokens.last()
	if err != nil && (got == nil || got.err != nil || reason == keyvault.CredentialsRefused || reason == keyvault.CredentialsUnavailable) {
		s := failed(Token, err)
		if reason == keyvault.CredentialsUnavailable && w.SignIn != nil {
			s.Remedy = "the steps below show how far the way to " + w.SignInHost + " goes"
		}
		w.add(s)
		if got != nil || reason == keyvault.CredentialsUnavailable {
			w.signIn()
		}
		w.add(notReached(Attributes))
		return
	}
	w.add(noted(Token, OK, got.text(w.Tokens.Method, w.SignInHost)))
	w.add(w.described(a, err))
}

// signIn looks at the way to the sign-in host, as far as it goes.
func (w *walk) signIn() {
	if w.SignIn == nil {
		return
	}
	var route keyvault.Route
	ended := false
	for _, part := range []struct {
		name Name
		look func(context.Context) Step
	}{
		{SignInDNS, func(ctx context.Context) (s Step) {
			route, s = resolve(ctx, w.SignIn, SignInDNS, w.SignInHost)
			return s
		}},
		{SignInTCP, func(ctx context.Context) Step { return connect(ctx, w.SignIn, SignInTCP, route) }},
		{SignInTLS, func(ctx context.Context) Step {
			x, err := w.SignIn.Exchange(ctx)
			return exchanged(x, err, route, SignInTLS, w.SignInHost)[0]
		}},
	} {
		if ended {
			w.add(notReached(part.name))
			continue
		}
		w.bounded(func(ctx context.Context) {
			s := part.look(ctx)
			ended = s.State == Fail
			w.add(s)
		})
	}
}

// described is what the vault says of the key. The identity need not be allowed to ask,
// unless the newest version is to be found.
func (w *walk) described(a keyvault.Attributes, err error) Step {
	switch {
	case err == nil:
	case keyvault.ReasonOf(err) == keyvault.AccessDenied && w.Key.Version != "":
		s := failed(Attributes, err)
		s.State, s.Text = Note, "the identity may not get the key's attributes, which is optional: its expiry and deletion are then not announced"
		return s
	default:
		s := failed(Attributes, err)
		if s.Reason == keyvault.AccessDenied {
			s.Remedy = `"get" is needed to find the newest version; or give the version that writes, as --key-version or in --key-url`
		}
		return s
	}
	w.attributes, w.key = &a, w.Key.WithVersion(a.Key.Version)
	parts := []string{"version " + a.Key.Version}
	if w.Key.Version == "" {
		parts[0] += " (the newest)"
	}
	if a.KeyType != "" {
		parts = append(parts, a.KeyType)
	}
	if !a.Created.IsZero() {
		parts = append(parts, "created "+stamp(a.Created))
	}
	if a.RecoveryLevel != "" {
		parts = append(parts, "recovery level "+a.RecoveryLevel)
	}
	s := noted(Attributes, OK, strings.Join(parts, ", "))
	if strings.Contains(a.RecoveryLevel, "Purgeable") {
		s.State = Note
		s.Text += "; it can be purged, and all that is encrypted with it: switch on purge protection"
	}
	return s
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// validity judges the attributes by the vault's clock.
func (w *walk) validity(context.Context) {
	a := w.attributes
	if a == nil {
		w.add(noted(Validity, Skipped, "the attributes are not known: the vault judges them with the encrypt"))
		return
	}
	now := a.Date
	if now.IsZero() {
		now = time.Now()
	}
	bounds := "no expiry"
	if !a.Expires.IsZero() {
		bounds = "expires " + stamp(a.Expires)
	}
	if !a.NotBefore.IsZero() {
		bounds = "valid from " + stamp(a.NotBefore) + ", " + bounds
	}
	if reason, text := a.Barred(now); reason != keyvault.Success {
		w.add(Step{Name: Validity, State: Fail, Reason: reason, Text: text})
		return
	}
	s := noted(Validity, OK, "enabled, "+bounds)
	if left := a.Expires.Sub(now); !a.Expires.IsZero() && left < soon {
		s.State = Warn
		s.Text += ", in " + console.Age(left)
		s.Remedy = "make a new version, or move the expiry date: an expired version decrypts, but a kube-apiserver that starts gets no new seed from it"
	}
	w.add(s)
}

// size is that of kube-apiserver's seeds.
const size = 32

func (w *walk) encrypt(ctx context.Context) {
	w.random = make([]byte, size)
	_, _ = rand.Read(w.random) // it never fails
	start := time.Now()
	block, err := w.Vault.Encrypt(keyvault.Background(ctx), w.key, w.random)
	if err != nil {
		w.add(failed(Encrypt, err))
		return
	}
	w.encrypted = block
	w.add(noted(Encrypt, OK, fmt.Sprintf("%d random bytes to %d, in %s", size, len(block), millis(time.Since(start)))))
}

// errOther is a decrypt that gives what was not encrypted.
var errOther error = &keyvault.Error{Op: keyvault.OpDecrypt, Reason: keyvault.Unknown, Text: "the vault gives other bytes than it was given: something on the way answers in its place, or it is broken"}

func (w *walk) decrypt(ctx context.Context) {
	start := time.Now()
	plain, err := w.Vault.Decrypt(keyvault.Background(ctx), w.key, w.encrypted)
	if err == nil && !bytes.Equal(plain, w.random) {
		err = errOther
	}
	clear(plain)
	if err != nil {
		w.add(failed(Decrypt, err))
		return
	}
	w.add(noted(Decrypt, OK, "the same bytes again, in "+millis(time.Since(start))))
}
