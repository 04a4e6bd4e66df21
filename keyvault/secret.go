package keyvault

import (
	"fmt"
	"io"
)

const redacted = "REDACTED"

// A Secret is a string that no formatting verb, JSON or text encoder prints. It
// is kept behind a pointer, because fmt calls no method on a value that it
// finds in an unexported field.
type Secret struct{ s *string }

// NewSecret hides s.
func NewSecret(s string) Secret { return Secret{&s} }

// Reveal returns the secret itself. Calls of it are the places to audit.
func (s Secret) Reveal() string {
	if s.s == nil {
		return ""
	}
	return *s.s
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.s == nil || *s.s == "" }

// String tells only whether there is a secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return redacted
}

// Format keeps every verb, %x and %#v too, from reaching the bytes.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText stands in for the value in JSON, YAML and structured logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
