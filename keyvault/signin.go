package keyvault

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
)

// identityPause is how long the metadata service is left alone once it has said
// that there is no such identity.
const identityPause = time.Minute

// signInCode is the number of a refusal by the directory.
var signInCode = pattern(`\bAADSTS\d{4,8}\b`)

// signInHints says what to mend, for the refusals that operators meet.
// Source: the "Microsoft Entra authentication and authorization error codes" page.
var signInHints = map[string]string{
	"AADSTS7000215": "aadClientSecret is wrong (a secret's value is needed, not its ID)",
	"AADSTS7000222": "aadClientSecret has expired: make a new one",
	"AADSTS700016":  "aadClientId is not known in tenantId",
	"AADSTS90002":   "tenantId does not exist in this cloud",
	"AADSTS900021":  "tenantId is not a valid tenant",
	"AADSTS7000112": "the application is disabled",
	"AADSTS700027":  "the certificate is not registered with the application",
	"AADSTS700024":  "the federated token or certificate is out of date: check this machine's clock and the token file",
	"AADSTS70021":   "no federated credential of the application matches the token's issuer and subject",
	"AADSTS700213":  "no federated credential of the application matches the token's issuer and subject",
	"AADSTS700211":  "no federated credential of the application matches the token's issuer",
}

// failure puts a failed sign-in in words; answer is the last that came, if any. What
// the endpoint says is cut to its code: its message names the application and its
// callers.
func (id *identity) failure(ctx context.Context, err error, answer *http.Response) *Error {
	// The library's error is not kept: it holds the request, and so the secret.
	e := &Error{Reason: CredentialsUnavailable}
	s := traceOf(ctx).snapshot()
	host := s.host
	if host == "" {
		host = "the sign-in host"
	}
	if ctx.Err() != nil && (s.pending || s.status == 0 && s.err == nil) {
		e.Cause = CauseTimeout
		e.Text = fmt.Sprintf("%s: no token within %s%s", host, fetchTimeout, s.before())
		return e
	}
	if s.err != nil {
		text, cause := netCause(s.err)
		e.Cause, e.Text = cause, fmt.Sprintf("signing in with a %s: %s: %s", id.method, host, text)
		return e
	}
	e.Status = s.status
	var says saying
	if answer != nil {
		e.Status = answer.StatusCode
		if body, err := runtime.Payload(answer); err == nil {
			says = readSaying(body)
		}
	}
	code := says.code
	e.Code = code
	if e.Status == http.StatusTooManyRequests && answer != nil {
		e.pause = min(retryAfter(answer.Header, time.Now()), maxRetryAfter)
	}
	detail := fmt.Sprintf("http %d", e.Status)
	if code != "" {
		detail += ", " + code
	}
	refusal := e.Status == http.StatusBadRequest || e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden && code != ""
	switch {
	case refusal && says.later:
		e.Cause = CauseServer
		e.Text = fmt.Sprintf("%s gives no token for the %s now (%s)", host, id.method, detail)
	case refusal && !says.shaped && id.method == methodManaged && answer != nil && answer.Header.Get("WWW-Authenticate") != "":
		// Azure Arc proves by a file who may ask.
		e.Text = fmt.Sprintf("%s: the challenge of the service that gives out tokens could not be met (%s): this process must be able to read the key files of its agent", host, detail)
	case refusal && !says.shaped:
		e.Cause = CauseProxy
		e.Text = fmt.Sprintf("%s: the answer to a sign-in with a %s is none of a sign-in host (%s); a proxy may have answered in its place", host, id.method, detail)
	case refusal:
		e.Reason = CredentialsRefused
		if said := metadataSays(err); id.method == methodManaged && said != "" {
			detail += ", " + said
		}
		if id.method == methodManaged {
			// Only a change of the machine or of azure.json mends it.
			e.pause = identityPause
		}
		e.Text = fmt.Sprintf("%s refuses the %s (%s): %s", host, id.method, detail, id.hint(code))
	case e.Status >= 200 && e.Status < 300:
		e.Text = fmt.Sprintf("%s: the answer to a sign-in with a %s is not a token (%s)", host, id.method, detail)
	case e.Status != 0:
		e.Cause = CauseServer
		e.Text = fmt.Sprintf("%s gives no token for the %s (%s)", host, id.method, detail)
		if e.Status == http.StatusForbidden && id.method == methodManaged {
			// The service itself answers 400 to what it does not like.
			e.Text += "; something on this machine keeps the process from it: check network policies, firewall rules and identity agents"
		}
	default:
		e.Text = fmt.Sprintf("signing in with a %s was not possible", id.method)
	}
	return e
}

// A saying is the part of a sign-in host's error that may be looked at.
type saying struct {
	shaped bool   // it is one: a page of something on the way is not
	code   string // of the directory; empty without one
	later  bool   // it will pass
}

// passing are the codes of faults that the directory calls transient.
// Source: as for signInHints.
var passing = []string{"AADSTS50033", "AADSTS90006", "AADSTS90012", "AADSTS90033"}

func readSaying(body []byte) saying {
	var doc map[string]any
	if json.Unmarshal(body, &doc) != nil {
		return saying{}
	}
	s := saying{shaped: true, code: string(signInCode().Find(body))}
	word, _ := doc["error"].(string)
	s.later = word == "temporarily_unavailable" || word == "server_error" || slices.Contains(passing, s.code)
	return s
}

// metadataSays finds what the metadata service says, in its own words: these
// name nobody, so they are shown.
func metadataSays(err error) string {
	for _, said := range []string{"Multiple user assigned identities exist", "Identity not found"} {
		if strings.Contains(err.Error(), said) {
			return said
		}
	}
	return ""
}

func (id *identity) hint(code string) string {
	if id.method == methodDataPlane && code != "AADSTS700024" {
		return "the identity file that aadMSIDataPlaneIdentityPath names is out of date, or not this cluster's"
	}
	if h := signInHints[code]; h != "" {
		return h
	}
	switch id.method {
	case methodManaged:
		if id.client == "" {
			return "this machine has no system-assigned identity, or several others: set userAssignedIdentityID in azure.json"
		}
		return "userAssignedIdentityID is not an identity of this machine"
	case methodWorkload:
		return "check the federated credential, AZURE_CLIENT_ID and AZURE_TENANT_ID"
	}
	return "check tenantId, aadClientId and the secret or certificate in azure.json"
}
