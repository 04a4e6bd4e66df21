package keyvault

// A Reason says why an operation failed. The list is closed: the texts are
// metric label values and condition reasons, so adding one is an API change.
type Reason string

const (
	// Success is the label of an operation that did not fail.
	Success Reason = "Success"

	KeyDisabled Reason = "KeyDisabled" // the version exists and is switched off
	KeyDeleted  Reason = "KeyDeleted"  // soft-deleted: it can be recovered
	KeyNotFound Reason = "KeyNotFound" // neither live nor known to be recoverable

	AccessDenied          Reason = "AccessDenied"          // the identity lacks the permission
	NetworkDenied         Reason = "NetworkDenied"         // firewall or private link refuses the caller
	OperationNotPermitted Reason = "OperationNotPermitted" // the key's key_ops lack the operation
	CredentialsRefused    Reason = "CredentialsRefused"    // the token endpoint says no, or the vault refuses a fresh token
	VaultNotFound         Reason = "VaultNotFound"         // the vault's name does not exist in DNS

	Unreachable            Reason = "Unreachable"            // DNS, TCP, TLS, time-out or a 5xx; see Cause
	Throttled              Reason = "Throttled"              // 429
	CredentialsUnavailable Reason = "CredentialsUnavailable" // the token endpoint cannot be reached or used
	Unknown                Reason = "Unknown"                // an answer that fits no other reason

	KeyExpired     Reason = "KeyExpired"     // past exp: decrypts only
	KeyNotYetValid Reason = "KeyNotYetValid" // before nbf: decrypts only

	BadCiphertext Reason = "BadCiphertext" // the vault cannot open this ciphertext
	BadRequest    Reason = "BadRequest"    // the caller's request is malformed
	UnknownKey    Reason = "UnknownKey"    // a key ID that belongs to no configured key
	Canceled      Reason = "Canceled"      // the caller gave up
)

// A Kind groups reasons by what may be concluded from them.
type Kind string

const (
	KindNone       Kind = ""           // Success
	KindKeyState   Kind = "KeyState"   // the vault says the key is not usable
	KindRefusal    Kind = "Refusal"    // somebody says no; role changes and name slips heal
	KindFault      Kind = "Fault"      // nobody answered; it says nothing about the key
	KindUnwritable Kind = "Unwritable" // writes are refused, reads are not
	KindCaller     Kind = "Caller"     // the request itself is at fault
)

// Kind returns the kind that r belongs to.
func (r Reason) Kind() Kind {
	switch r {
	case Success:
		return KindNone
	case KeyDisabled, KeyDeleted, KeyNotFound:
		return KindKeyState
	case AccessDenied, NetworkDenied, OperationNotPermitted, CredentialsRefused, VaultNotFound:
		return KindRefusal
	case KeyExpired, KeyNotYetValid:
		return KindUnwritable
	case BadCiphertext, BadRequest, UnknownKey, Canceled:
		return KindCaller
	}
	return KindFault
}

// Reasons lists every reason that an operation can end with, Success first.
func Reasons() []Reason {
	return []Reason{
		Success,
		KeyDisabled, KeyDeleted, KeyNotFound,
		AccessDenied, NetworkDenied, OperationNotPermitted, CredentialsRefused, VaultNotFound,
		Unreachable, Throttled, CredentialsUnavailable, Unknown,
		KeyExpired, KeyNotYetValid,
		BadCiphertext, BadRequest, UnknownKey, Canceled,
	}
}

// A Cause refines Unreachable, VaultNotFound and CredentialsUnavailable. The list is closed.
type Cause string

const (
	CauseNone    Cause = ""
	CauseDNS     Cause = "dns"     // the name did not resolve
	CauseTCP     Cause = "tcp"     // refused, reset or no route
	CauseTLS     Cause = "tls"     // handshake or certificate
	CauseTimeout Cause = "timeout" // no answer in time
	CauseServer  Cause = "server"  // a 5xx
	CauseProxy   Cause = "proxy"   // a middlebox answered in the vault's place
)
