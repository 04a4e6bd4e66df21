package keyvault

import (
	"crypto/sha256"
	"time"
)

// An Op is an operation on a vault.
type Op string

const (
	OpEncrypt Op = "encrypt"
	OpDecrypt Op = "decrypt"
	OpGet     Op = "get"
	OpList    Op = "list"
	// OpWrap and OpUnwrap take the place of encrypt and decrypt with
	// --key-operations=wrap: the same bytes, another permission.
	OpWrap   Op = "wrap"
	OpUnwrap Op = "unwrap"
)

// Ops lists every operation, for metrics that must exist from the start.
func Ops() []Op { return []Op{OpEncrypt, OpDecrypt, OpWrap, OpUnwrap, OpGet, OpList} }

// A Call is one HTTP exchange with a vault, retries counted singly.
type Call struct {
	Op     Op
	Reason Reason
	Took   time.Duration
}

// An Outcome is the end of one operation, after retries. It is evidence about
// the key: outcomes that were answered by the circuit breaker, or that ended
// because the caller left, are not reported. Nor is a look at deleted keys. A list
// says nothing about a key: a vault answers it for missing keys too.
type Outcome struct {
	Op   Op
	Key  Ref
	Err  *Error // nil for success
	Time time.Time
}

// A SeedEvent is the end of one Encrypt or Decrypt that a caller asked a keyring for:
// what a kube-apiserver calls a seed was wrapped or unwrapped, or was not.
type SeedEvent struct {
	Op  Op // OpEncrypt or OpDecrypt, whatever the permission is called
	Key Ref
	// Sum is the SHA-256 of the wrapped seed; zero for an Encrypt that failed.
	Sum  [sha256.Size]byte
	Err  *Error // nil for success
	Time time.Time
}
