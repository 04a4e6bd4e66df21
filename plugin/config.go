package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"azure-kms-plugin/keyvault"
)

// A Keyring encrypts and decrypts with the versions of a key. Its errors
// should be [*keyvault.Error]; the text of any other is not passed on.
type Keyring interface {
	// KeyID is the ID to encrypt under now, from memory; empty while none is
	// known. held is the ID of the seed that the caller's connection has, if it
	// was told another one since and has no seed under that; then the answer may be
	// held once more.
	KeyID(held string) string
	// Encrypt encrypts under the version that keyID names, which is the ID
	// that the caller's connection was last told.
	Encrypt(ctx context.Context, keyID string, plaintext []byte) (block []byte, key keyvault.Ref, err error)
	// Decrypt opens a block that was encrypted under keyID. versionHint is the
	// version that the object claims, or empty; it is not to be trusted.
	Decrypt(ctx context.Context, keyID, versionHint string, block []byte) (plaintext []byte, key keyvault.Ref, err error)
}

// A Readiness says whether Status may say "ok". The error's text is what
// kube-apiserver is told. It must answer from memory, but for the first call
// after a start.
type Readiness interface {
	Ready(ctx context.Context) error
}

// A Request is the outcome of one call, for metrics and health.
type Request struct {
	Op Op
	// KeyID is the key ID that the call was answered under or failed for.
	// It is empty unless it belongs to a key that the keyring knows, so that
	// the number of different values does not depend on callers.
	KeyID string
	// Key is the key version behind KeyID, as far as the keyring told.
	Key    keyvault.Ref
	Reason keyvault.Reason
	Code   codes.Code
	Took   time.Duration
}

// An Op is a method of the KMS v2 service.
type Op string

const (
	OpStatus  Op = "status"
	OpEncrypt Op = "encrypt"
	OpDecrypt Op = "decrypt"
)

// Ops lists every Op, for metrics that must exist from the start.
func Ops() []Op { return []Op{OpStatus, OpEncrypt, OpDecrypt} }

// DefaultAPIVersion is what Status says by default.
const DefaultAPIVersion = "v2beta1"

const (
	defaultAddress = "unix:///opt/azurekms.socket"
	defaultGrace   = 10 * time.Second
)

// A Config says what to serve and where. Keyring and Readiness must be set;
// the zero value of every other field works.
type Config struct {
	Socket    SocketConfig
	Keyring   Keyring
	Readiness Readiness
	// Format is what Encrypt writes. Decrypt reads every format.
	Format Format
	// APIVersion is what Status says: "v2beta1" (default) or "v2".
	APIVersion string
	// Observe is told of every call after it ended. It must not block.
	// Optional.
	Observe func(Request)
	// Logger gets one line per failed call and per event of the socket.
	// Optional.
	Logger *zap.Logger
	// StopGrace is how long calls may go on after Run's context has ended.
	// Default 10 s.
	StopGrace time.Duration
}

// validate applies the defaults and reports every fault.
func (c *Config) validate() error {
	var faults []error
	if c.Keyring == nil {
		faults = append(faults, errors.New("keyring: must be set"))
	}
	if c.Readiness == nil {
		faults = append(faults, errors.New("readiness: must be set"))
	}
	if c.Format != Azure && c.Format != OpenShift {
		faults = append(faults, fmt.Errorf("ciphertext format: %d is none", c.Format))
	}
	switch c.APIVersion {
	case "":
		c.APIVersion = DefaultAPIVersion
	case "v2", DefaultAPIVersion:
	default:
		faults = append(faults, fmt.Errorf("API version: %q is unknown to kube-apiserver: write v2beta1 or v2", c.APIVersion))
	}
	if c.StopGrace < 0 {
		faults = append(faults, fmt.Errorf("stop grace: %v is negative", c.StopGrace))
	}
	if c.StopGrace == 0 {
		c.StopGrace = defaultGrace
	}
	if c.Observe == nil {
		c.Observe = func(Request) {}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return errors.Join(faults...)
}
