package vault

import (
	"encoding/json"
	"fmt"
)

// An apiError is an error body of a vault or Managed HSM.
type apiError struct {
	status               int
	code, inner, message string
	empty                bool // no body at all
}

func (e *apiError) Error() string {
	return fmt.Sprintf("%d %s %s: %s", e.status, e.code, e.inner, e.message)
}

func (e *apiError) body() []byte {
	if e.empty {
		return nil
	}
	type inner struct {
		Code string `json:"code"`
	}
	type shape struct {
		Code       string `json:"code"`
		Message    string `json:"message"`
		InnerError *inner `json:"innererror,omitempty"`
	}
	s := shape{Code: e.code, Message: e.message}
	if e.inner != "" {
		s.InnerError = &inner{e.inner}
	}
	b, err := json.Marshal(map[string]shape{"error": s})
	if err != nil {
		panic(err) // strings always marshal
	}
	return b
}

// on gives e the shape that a Managed HSM has for it: the inner code on top,
// and an activity ID.
func (e *apiError) on(hsm bool) *apiError {
	if !hsm || e.empty {
		return e
	}
	h := *e
	if h.status == 401 {
		h.empty = true
	}
	if h.inner != "" {
		h.code, h.inner = h.inner, ""
	}
	h.message += " (Activity ID: " + randomGUID() + ")"
	return &h
}

func badParameter(message string) *apiError {
	return &apiError{status: 400, code: "BadParameter", message: message}
}

func errUnauthorized(message string) *apiError {
	return &apiError{status: 401, code: "Unauthorized", message: message}
}

func forbidden(inner, message string) *apiError {
	return &apiError{status: 403, code: "Forbidden", inner: inner, message: message}
}

func errKeyNotFound(id string) *apiError {
	return &apiError{status: 404, code: "KeyNotFound", message: "A key with (name/id) " + id +
		" was not found in this key vault. If you recently deleted this key you may be able to recover it using the correct recovery command." +
		" For help resolving this issue, please see https://go.microsoft.com/fwlink/?linkid=2125182"}
}

func errDeletedNotFound(name string) *apiError {
	return &apiError{status: 404, code: "KeyNotFound", message: "Deleted Key not found: " + name}
}

func errConflict(name, inner string) *apiError {
	text := map[string]string{
		"ObjectIsDeletedButRecoverable": "is currently in a deleted but recoverable state, and its name cannot be reused; in this state, the key can only be recovered or purged.",
		"ObjectIsBeingDeleted":          "is currently being deleted and cannot be re-created; retry later.",
		"ObjectIsBeingRecovered":        "is currently being recovered and cannot be used; retry later.",
	}[inner]
	return &apiError{status: 409, code: "Conflict", inner: inner, message: "Key " + name + " " + text}
}

// standIn is the message and code that the service has for a status or inner
// code, for faults that name no more than that.
func standIn(f Fault, op Op, caller string) *apiError {
	e := &apiError{status: f.Status, code: f.Code, inner: f.InnerCode, message: f.Message}
	if e.status == 0 {
		e.status = 403
	}
	code, message := "", ""
	switch e.status {
	case 400:
		code, message = "BadParameter", textBadOAEP
	case 401:
		code, message = "Unauthorized", textBadToken
	case 403:
		code, message = "Forbidden", forbiddenText(e.inner, op, caller)
	case 404:
		code, message = "KeyNotFound", errKeyNotFound(f.Key).message
	case 409:
		code, message = "Conflict", "The object is in a state that does not allow it."
	case 429:
		code, message = "Throttled", "Request was not processed because too many requests were received. Reason: VaultRequestTypeLimitReached"
	case 500:
		code, message = "InternalServerError", "An internal error occurred."
	case 503:
		code, message = "ServiceUnavailable", "The service is temporarily unavailable."
	default:
		code, message = "Error", fmt.Sprintf("The fault says %d.", e.status)
	}
	if e.code == "" {
		e.code = code
	}
	if e.message == "" {
		e.message = message
	}
	return e
}

const (
	textBadOAEP      = "Error occurred while decoding OAEP padding."
	textBadPKCS1     = "Error occurred while decoding PKCS1 padding."
	textBadProperty  = "Property  has invalid value\r\n"
	textNoToken      = "AKV10000: Request is missing a Bearer or PoP token."
	textBadAudience  = "AKV10022: Invalid audience. Expected %s, found: %s."
	textBadIssuer    = "AKV10032: Invalid issuer. Expected one of https://sts.windows.net/%s/, found https://sts.windows.net/%s/."
	textBadToken     = "AKV10046: Unable to resolve the key used for signature validation."
	textTokenExpired = "Error validating token: the token is expired."

	textFirewall    = "Client address is not authorized and caller is not a trusted service.\r\nClient address: %s\r\nCaller: %s\r\nVault: %s;location=%s"
	textNoPublic    = "Public network access is disabled and request is not from a trusted service nor via an approved private link.\r\nCaller: %s\r\nVault: %s;location=%s"
	textNotApproved = "Connection is not an approved private link and caller was ignored because bypass is not set to 'AzureServices' and PublicNetworkAccess is set to 'Disabled'.\r\nCaller: %s\r\nVault: %s;location=%s"
)

// forbiddenText is the message for an inner code of 403.
func forbiddenText(inner string, op Op, caller string) string {
	switch inner {
	case "KeyDisabled":
		return fmt.Sprintf("Operation %s is not allowed on a disabled key.", op)
	case "KeyExpired":
		return fmt.Sprintf("Operation %s is not allowed on an expired key.", op)
	case "KeyNotYetValid":
		return fmt.Sprintf("Operation %s is not allowed on a key that is not yet valid.", op)
	case "KeyOperationForbidden":
		return fmt.Sprintf("Operation %s is not permitted on this key.", op)
	case "ForbiddenByFirewall":
		return fmt.Sprintf(textFirewall, "203.0.113.7", caller, "vault", location)
	case "ForbiddenByConnection":
		return fmt.Sprintf(textNoPublic, caller, "vault", location)
	case "ForbiddenByRbac":
		return rbacText(caller, "read", "vault")
	case "AccessDenied", "ForbiddenByPolicy":
		return policyText(caller, string(op), "vault")
	}
	return "The operation is forbidden."
}

func rbacText(caller, action, vault string) string {
	return "Caller is not authorized to perform action on resource.\r\n" +
		"If role assignments, deny assignments or role definitions were changed recently, please observe propagation time.\r\n" +
		"Caller: " + caller + "\r\n" +
		"Action: 'Microsoft.KeyVault/vaults/keys/" + action + "'\r\n" +
		"Resource: '/subscriptions/" + subscription + "/resourcegroups/emulated/providers/microsoft.keyvault/vaults/" + vault + "'\r\n" +
		"Assignment: (not found)\r\nDenyAssignmentId: null\r\nDecisionReason: 'DeniedWithNoValidRBAC' \r\n" +
		"Vault: " + vault + ";location=" + location + "\r\n"
}

func policyText(caller, permission, vault string) string {
	return "The user, group or application '" + caller + "' does not have keys " + permission + " permission on key vault '" +
		vault + ";location=" + location + "'. For help resolving this issue, please see https://go.microsoft.com/fwlink/?linkid=2125287"
}

const (
	location     = "eastus"
	subscription = "00000000-1111-2222-3333-444444444444"
)
