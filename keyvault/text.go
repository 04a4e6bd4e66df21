package keyvault

import (
	"fmt"
	"strings"
	"time"
)

// answerText puts an answer of the vault in words: what was seen, where, and
// what to mend. Messages of the service are left out: they name callers,
// subscriptions and addresses.
func answerText(e *Error, a answer, contentType string) string {
	if !a.shaped && e.Reason == Unknown {
		return fmt.Sprintf("%s: unexpected response (%s)", e.Key.Host, httpText(e, contentType))
	}
	return fmt.Sprintf("%s: %s (%s)%s", where(e.Key), seen(e, a), httpText(e, ""), mend(e))
}

// Where names the key as a person looks for it. Every text about a key begins with it.
func (r Ref) Where() string { return where(r) }

func where(r Ref) string {
	s := r.Host
	if r.Name != "" {
		s += ", key " + r.Name
	}
	if r.Version != "" {
		s += ", version " + r.Version
	}
	return s
}

// httpText lists what the HTTP answer was.
func httpText(e *Error, contentType string) string {
	parts := []string{fmt.Sprintf("http %d", e.Status)}
	if e.Code != "" {
		code := e.Code
		if e.InnerCode != "" {
			code += "/" + e.InnerCode
		}
		parts = append(parts, code)
	}
	if t := mediaType(contentType); t != "" {
		parts = append(parts, t)
	}
	if e.RequestID != "" {
		parts = append(parts, "request "+e.RequestID)
	}
	return strings.Join(parts, ", ")
}

// seen says what an answer means.
func seen(e *Error, a answer) string {
	switch e.Reason {
	case KeyDisabled:
		return "the version is disabled"
	case KeyDeleted:
		return "the key is deleted, and can be recovered"
	case KeyNotFound:
		return "no such key or version"
	case KeyExpired:
		return "the version has expired, so it only decrypts"
	case KeyNotYetValid:
		return "the version is not yet valid, so it only decrypts"
	case AccessDenied:
		return "the identity may not " + doing(e.Op)
	case NetworkDenied:
		return "the vault's firewall or private link refuses this caller"
	case OperationNotPermitted:
		return "the key does not allow " + string(e.Op) + " with RSA-OAEP-256"
	case CredentialsRefused:
		return "the token is refused"
	case Throttled:
		return "too many requests"
	case BadCiphertext:
		return "the vault cannot open this ciphertext"
	case Unreachable:
		if e.Cause == CauseProxy {
			return "a proxy or other device answers in the vault's place"
		}
		return "the service is in trouble"
	}
	if a.shaped {
		return "the vault refuses for a reason that is not known here"
	}
	return "unexpected response"
}

// doing is an operation as the end of a sentence.
func doing(op Op) string {
	switch op {
	case OpGet:
		return "get the attributes of the key"
	case OpList:
		return "list the versions of the key"
	}
	return string(op) + " with the key"
}

// permission is the word of access policies and RBAC roles for an operation.
func permission(op Op) string {
	switch op {
	case OpWrap:
		return "wrapKey"
	case OpUnwrap:
		return "unwrapKey"
	}
	return string(op)
}

// hsmRole is the action in the local roles of a Managed HSM, and the smallest
// built-in role that has it. Source: "Managed HSM local RBAC built-in roles".
func hsmRole(op Op) (action, role string) {
	switch op {
	case OpEncrypt, OpDecrypt:
		return string(op), "Managed HSM Crypto User"
	case OpGet, OpList:
		action = "read"
	default:
		action = string(op)
	}
	return action, "Managed HSM Crypto Service Encryption User"
}

// orWrap says what helps as well: the least of the roles that Azure has for this
// allows the other pair of operations.
func orWrap(op Op) string {
	if op == OpEncrypt || op == OpDecrypt {
		return ", or start with --key-operations=wrap if it may wrap and unwrap"
	}
	return ""
}

// Earlier is a failure of which only the reason is known, and when it was first seen: by a
// process before this one.
func Earlier(op Op, key Ref, reason Reason, first time.Time) *Error {
	e := &Error{Op: op, Key: key, Reason: reason}
	e.Text = where(key) + ": first seen at " + first.UTC().Format(time.RFC3339) + ", before this process started" + mend(e)
	return e
}

// mend says what a person can do, if anything.
func mend(e *Error) string {
	switch e.Reason {
	case KeyDisabled:
		return "; enable this version again (az keyvault key set-attributes" + azName(e.Key) + " --enabled true)"
	case KeyDeleted:
		return "; recover it (az keyvault key recover" + azName(e.Key.WithVersion("")) + "), do not purge it"
	case KeyNotFound:
		return "; check vault, key and version; if it was deleted, recover it and do not purge it"
	case KeyExpired:
		return "; change to a new version (az keyvault key rotate" + azName(e.Key.WithVersion("")) + ") or move its expiry date (az keyvault key set-attributes" + azName(e.Key) + " --expires)"
	case KeyNotYetValid:
		return "; move its activation date or wait for it"
	case AccessDenied:
		if e.Key.IsHSM() {
			action, role := hsmRole(e.Op)
			return fmt.Sprintf("; assign it a local role of the Managed HSM that allows keys/%s, such as %q%s; a new assignment takes minutes to work", action, role, orWrap(e.Op))
		}
		return fmt.Sprintf("; grant it the key permission %q%s; a new grant takes minutes to work", permission(e.Op), orWrap(e.Op))
	case NetworkDenied:
		return "; allow this network or its private endpoint in the vault's networking settings"
	case OperationNotPermitted:
		return fmt.Sprintf("; it must be an RSA key with %q among its permitted operations", permission(e.Op))
	case Throttled:
		if e.RetryAfter > 0 {
			return fmt.Sprintf("; the vault asks for a pause of %s", e.RetryAfter)
		}
	}
	return ""
}

// azName is what the Azure command line calls a key, or one version of it, after a space;
// empty for none.
func azName(r Ref) string {
	if r.Host == "" {
		return ""
	}
	vault, _, _ := strings.Cut(r.Host, ".")
	flag := " --vault-name "
	if r.IsHSM() {
		flag = " --hsm-name "
	}
	s := flag + vault + " --name " + r.Name
	if r.Version != "" {
		s += " --version " + r.Version
	}
	return s
}
