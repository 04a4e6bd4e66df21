package keyvault

import (
	"errors"
	"strings"
	"time"
	"unicode"
)

// An Error reports a failed operation. Its text begins with the Reason, is
// safe to log and to return over the socket, and fits 1024 bytes: it never
// holds a token, a response body, or an identifier of a person or subscription.
type Error struct {
	Op     Op
	Key    Ref
	Reason Reason
	Cause  Cause
	// Status, Code and InnerCode are the HTTP status and the codes of the
	// vault's error body; zero when no answer came.
	Status    int
	Code      string
	InnerCode string
	// RequestID is the vault's x-ms-request-id, cut to printable ASCII.
	RequestID string
	// RetryAfter is how long the vault asked to be left alone; zero if it did not say.
	RetryAfter time.Duration
	// Remembered is set on an answer of the circuit breaker: the vault was not
	// asked again.
	Remembered bool
	// PurgeAt is when the vault destroys a deleted key; zero for any other failure,
	// and where the vault does not tell.
	PurgeAt time.Time
	// Missing says of a KeyNotFound what is gone, as far as a look has shown.
	Missing Missing
	// Text says what was seen and what to mend, without the reason word.
	Text string
	// Err is the cause for errors.Is and errors.As; it is not part of the text.
	Err error

	// pause is how long a sign-in host must not be asked again, if longer than usual.
	pause time.Duration
}

// Missing is what of a key a vault does not have. The list is closed.
type Missing string

const (
	MissingUnknown Missing = ""        // not looked at, or not shown
	MissingVersion Missing = "version" // the key is there, without this version
	MissingKey     Missing = "key"     // neither live nor among the deleted ones
)

// maxText is what a text may take: kube-apiserver cuts a longer one where it likes.
const maxText = 1024

func (e *Error) Error() string {
	s := string(e.Reason) + ": " + strings.Map(printable, e.Text)
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText-len("...")], "") + "..."
	}
	return s
}

// printable keeps a text on one line, whatever a file is called.
func printable(r rune) rune {
	if !unicode.IsPrint(r) {
		return ' '
	}
	return r
}

// Shown is the text as Error has it, without the reason word.
func (e *Error) Shown() string { return strings.TrimPrefix(e.Error(), string(e.Reason)+": ") }

func (e *Error) Unwrap() error { return e.Err }

// ReasonOf says why err happened, for a metric label. A nil error is Success,
// one that this package did not make is Unknown.
func ReasonOf(err error) Reason {
	if err == nil {
		return Success
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return Unknown
}
