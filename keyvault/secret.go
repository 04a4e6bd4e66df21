package keyvault

import (
	"fmt"
	"io"
)

const redacted = "REDACTED"

// A Secret is a string that no formatting verb, JSON or text encoder prints.
type Secret string

// Reveal returns the secret itself. Calls of it are the places to audit.
func (s Secret) Reveal() string { return string(s) }

// String tells only whether there is a secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// Format keeps every verb, %x and %#v too, from reaching the bytes.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText stands in for the value in JSON, YAML and structured logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
