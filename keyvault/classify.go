package keyvault

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
)

// An answer is the part of a vault's error response that may be looked at.
type answer struct {
	status int
	code   string // error.code, lower case
	inner  string // error.innererror.code, lower case
	text   string // error.message, lower case; never shown, it names callers
	shaped bool   // the body is a Key Vault error
	ours   bool   // a header says that a vault answered, not something before it
	asks   bool   // it says which token is wanted, as every 401 of a vault does
}

// answerError turns a response into a failure; nil for a success.
func answerError(op Op, ref Ref, resp *http.Response) *Error {
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return nil
	}
	e := &Error{Op: op, Key: ref, Status: resp.StatusCode, RequestID: requestID(resp), RetryAfter: retryAfter(resp.Header, time.Now())}
	a := readAnswer(resp, e)
	e.Reason, e.Cause = classify(op, a)
	e.Text = answerText(e, a, resp.Header.Get("Content-Type"))
	return e
}

func readAnswer(resp *http.Response, e *Error) answer {
	a := answer{status: resp.StatusCode}
	a.ours = resp.Header.Get("x-ms-request-id") != "" || resp.Header.Get("x-ms-keyvault-service-version") != ""
	a.asks = resp.Header.Get("WWW-Authenticate") != ""
	body, err := runtime.Payload(resp)
	if err != nil {
		return a
	}
	// encoding/json matches names without regard to case, as is needed here:
	// services differ on "innererror".
	var doc struct {
		Error struct {
			Code       string
			Message    string
			InnerError struct{ Code string }
		}
	}
	if json.Unmarshal(body, &doc) != nil || doc.Error.Code == "" {
		return a
	}
	e.Code, e.InnerCode = codeWord(doc.Error.Code), codeWord(doc.Error.InnerError.Code)
	a.shaped = true
	a.code, a.inner, a.text = strings.ToLower(e.Code), strings.ToLower(e.InnerCode), strings.ToLower(doc.Error.Message)
	return a
}

// classify is the table of the service's answers. The inner codes are not
// documented as a whole, so messages are the second clue.
func classify(op Op, a answer) (Reason, Cause) {
	switch {
	case a.status == http.StatusTooManyRequests || a.code == "throttled":
		return Throttled, CauseNone
	case a.status == http.StatusProxyAuthRequired,
		!a.shaped && !a.ours && (a.status == http.StatusForbidden || a.status == http.StatusBadGateway || a.status == http.StatusUnauthorized && !a.asks):
		return Unreachable, CauseProxy
	case a.status >= 500, a.status == http.StatusRequestTimeout:
		return Unreachable, CauseServer
	case a.status == http.StatusUnauthorized:
		return CredentialsRefused, CauseNone
	case !a.shaped:
		return Unknown, CauseNone
	}
	switch a.status {
	case http.StatusNotFound:
		return KeyNotFound, CauseNone
	case http.StatusConflict:
		if a.has("objectisdeletedbutrecoverable", "objectisbeingrecovered", "objectisbeingdeleted", "deleted but recoverable") {
			return KeyDeleted, CauseNone
		}
	case http.StatusForbidden:
		return classifyForbidden(a), CauseNone
	case http.StatusBadRequest:
		switch op {
		case OpDecrypt, OpUnwrap:
			return BadCiphertext, CauseNone
		case OpEncrypt, OpWrap:
			if a.has("key type", "keytype", "key-size", "algorithm") {
				return OperationNotPermitted, CauseNone
			}
		}
	}
	return Unknown, CauseNone
}

func classifyForbidden(a answer) Reason {
	for _, code := range []string{a.inner, a.code} {
		switch code {
		case "keydisabled":
			return KeyDisabled
		case "keyexpired":
			return KeyExpired
		case "keynotyetvalid":
			return KeyNotYetValid
		case "keyoperationforbidden":
			return OperationNotPermitted
		case "forbiddenbyrbac", "forbiddenbypolicy", "accessdenied":
			return AccessDenied
		case "forbiddenbyfirewall", "forbiddenbyconnection":
			return NetworkDenied
		}
	}
	switch {
	case a.has("disabled key", "key is disabled"):
		return KeyDisabled
	case a.has("expired key", "key is expired"):
		return KeyExpired
	case a.has("not yet valid"):
		return KeyNotYetValid
	case a.has("not permitted on this key"):
		return OperationNotPermitted
	case a.has("client address is not authorized", "public network access", "private link"):
		return NetworkDenied
	case a.has("permission on key vault", "not authorized"):
		return AccessDenied
	}
	return Unknown
}

// has looks for any of the lower-case words in codes and message.
func (a answer) has(words ...string) bool {
	for _, w := range words {
		if strings.Contains(a.code, w) || strings.Contains(a.inner, w) || strings.Contains(a.text, w) {
			return true
		}
	}
	return false
}

var (
	notCode  = pattern(`[^0-9A-Za-z_.-]`)
	idForm   = pattern(`^[0-9A-Za-z_.-]{1,64}$`)
	typeForm = pattern(`^[0-9A-Za-z]+/[0-9A-Za-z+.-]+$`)
	guidInIt = pattern(`[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}`)
)

// codeWord cuts an error code to what codes are made of. One that names somebody is none.
func codeWord(s string) string {
	if strings.Contains(s, "@") || guidInIt().MatchString(s) {
		return ""
	}
	return clean(notCode().ReplaceAllString(s, ""), 64)
}

// requestID and mediaType are of the form that a service has for them, or empty:
// something on the way may have written anything there.
func requestID(resp *http.Response) string {
	if id := resp.Header.Get("x-ms-request-id"); idForm().MatchString(id) {
		return id
	}
	return ""
}

func mediaType(contentType string) string {
	t, _, _ := strings.Cut(contentType, ";")
	if t = strings.TrimSpace(t); typeForm().MatchString(t) {
		return clean(t, 40)
	}
	return ""
}

// retryAfter reads the pause that the service asks for, in any of its forms.
func retryAfter(h http.Header, now time.Time) time.Duration {
	for _, f := range []struct {
		name string
		unit time.Duration
	}{{"retry-after-ms", time.Millisecond}, {"x-ms-retry-after-ms", time.Millisecond}, {"Retry-After", time.Second}} {
		v := h.Get(f.name)
		if v == "" {
			continue
		}
		if n, err := strconv.Atoi(v); err == nil && n >= 0 && n < 1<<31 {
			return time.Duration(n) * f.unit
		}
		if t, err := http.ParseTime(v); err == nil {
			return max(t.Sub(now), 0)
		}
	}
	return 0
}
