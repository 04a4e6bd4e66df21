package keyvault

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
)

// An authPolicy signs requests to vaults. It stands in for the SDK's own, which
// lets callers wait past their deadlines for a token, keeps a token that the
// vault has refused, and panics on some WWW-Authenticate headers.
type authPolicy struct {
	tokens *tokenCache

	mu sync.Mutex
	// challenges are those that a vault has taken a token for: a wrong one that
	// were kept would be acted on before the vault could correct it.
	challenges map[string]challenge // by lower-case host; guarded by mu
}

func newAuthPolicy(source TokenSource) *authPolicy {
	return &authPolicy{tokens: newTokenCache(source), challenges: map[string]challenge{}}
}

type hostKey struct{}

// Do implements policy.Policy, once per try.
func (p *authPolicy) Do(req *policy.Request) (*http.Response, error) {
	ctx := req.Raw().Context()
	host := strings.ToLower(req.Raw().URL.Hostname())
	// Page links come from the vault; a token follows them only home.
	port := req.Raw().URL.Port()
	if want, _ := ctx.Value(hostKey{}).(string); host != want || port != "" && port != "443" || req.Raw().URL.Scheme != "https" {
		return nil, p.fail(ctx, &Error{Reason: Unknown, Text: fmt.Sprintf("%s refers to another host, which was not asked", want)})
	}
	ch, known := p.challenge(host)
	if !known {
		resp, err := elicit(req)
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			return resp, err
		}
		if ch, err = readChallenge(host, resp.Header); err != nil {
			return nil, p.fail(ctx, &Error{Reason: Unreachable, Cause: CauseProxy, Status: resp.StatusCode, Text: err.Error()})
		}
	}
	token, failure := p.tokens.get(ctx, ch.request())
	if failure != nil {
		return nil, p.noToken(ctx, host, failure)
	}
	resp, err := send(req, token)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusUnauthorized {
		p.accepted(host, ch)
		return resp, nil
	}

	// The token is refused, though it has not expired: one other is tried. The
	// answer may also name another audience or tenant than before.
	refusal := p.refused(host, ch.request(), resp)
	if refusal.Reason != CredentialsRefused {
		return nil, p.fail(ctx, refusal)
	}
	if other, err := readChallenge(host, resp.Header); err == nil {
		ch = other
	}
	token, failure, ok := p.tokens.renew(ctx, ch.request(), token)
	switch {
	case !ok:
		return nil, p.fail(ctx, refusal)
	case failure != nil:
		return nil, p.noToken(ctx, host, failure)
	}
	drain(resp)
	if resp, err = send(req, token); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusUnauthorized {
		p.accepted(host, ch)
		return resp, nil
	}
	return nil, p.fail(ctx, p.refused(host, ch.request(), resp))
}

// elicit sends the request without body and token, to be told which token the
// vault wants.
func elicit(req *policy.Request) (*http.Response, error) {
	bare := req.Clone(context.WithValue(req.Raw().Context(), elicitKey{}, true))
	if err := bare.SetBody(nil, ""); err != nil {
		return nil, err
	}
	return bare.Next()
}

type elicitKey struct{}

// send signs a copy with a body of its own: the transport may still read the
// request that it was given after a cancelled call has returned.
func send(req *policy.Request, token string) (*http.Response, error) {
	signed := req.Clone(req.Raw().Context())
	if body := req.Body(); body != nil {
		if err := req.RewindBody(); err != nil {
			return nil, err
		}
		data, err := io.ReadAll(body)
		if err != nil {
			return nil, err
		}
		if err := signed.SetBody(streaming.NopCloser(bytes.NewReader(data)), req.Raw().Header.Get("Content-Type")); err != nil {
			return nil, err
		}
	}
	signed.Raw().Header.Set("Authorization", "Bearer "+token)
	return signed.Next()
}

func (p *authPolicy) challenge(host string) (challenge, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ch, ok := p.challenges[host]
	return ch, ok
}

// accepted notes that the vault has taken a token fetched for its challenge.
func (p *authPolicy) accepted(host string, ch challenge) {
	p.tokens.accepted(ch.request())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.challenges[host] = ch
}

// noToken ends a call that got no token. After a refusal the vault is asked anew
// for its challenge, which may have been a wrong one.
func (p *authPolicy) noToken(ctx context.Context, host string, failure *Error) error {
	if failure.Reason == CredentialsRefused {
		p.mu.Lock()
		delete(p.challenges, host)
		p.mu.Unlock()
	}
	return p.fail(ctx, failure)
}

// vaultAuthCode is the code that a vault's 401 begins its message with, and
// vaultExpects the audience that the message wants.
var (
	vaultAuthCode = pattern(`\bAKV\d{5}\b`)
	vaultExpects  = pattern(`\baudience\. Expected (https://[0-9A-Za-z.-]{1,100})`)
)

// refused says that the vault has refused a token, which one, and what for; or that
// the answer is not a vault's.
func (p *authPolicy) refused(host string, sent TokenRequest, resp *http.Response) *Error {
	wants := "it does not say for which audience"
	ch, err := readChallenge(host, resp.Header)
	if err == nil {
		wants = "it wants one for " + ch.audience
	} else if reason, cause := classify(OpGet, readAnswer(resp, &Error{})); reason != CredentialsRefused {
		return &Error{Reason: reason, Cause: cause, Status: resp.StatusCode, Text: err.Error()}
	}
	code := ""
	if body, err := runtime.Payload(resp); err == nil {
		if code = string(vaultAuthCode().Find(body)); code != "" {
			code = ", " + code
		}
		// A proxy may have changed the header; the message is the vault's own.
		if m := vaultExpects().FindSubmatch(body); m != nil {
			wants = "it wants one for " + strings.TrimSuffix(string(m[1]), ".")
		}
	}
	return &Error{
		Reason: CredentialsRefused, Status: resp.StatusCode, RequestID: requestID(resp),
		Text: fmt.Sprintf("%s refuses a fresh token (http 401%s): %s, the token was fetched for %s; check tenantId and cloud in azure.json",
			host, code, wants, strings.TrimSuffix(sent.Scope, "/.default")),
	}
}

// fail ends the call with a failure that no retry mends, and leaves it in the
// trace, because the SDK forgets errors once the call's time is up.
func (p *authPolicy) fail(ctx context.Context, e *Error) error {
	if ctx.Err() == nil {
		traceOf(ctx).fail(e)
	}
	return &finalError{e}
}

// A finalError keeps the SDK from retrying.
type finalError struct{ err *Error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }
func (*finalError) NonRetriable()   {}

func drain(resp *http.Response) {
	_, _ = runtime.Payload(resp)
	_ = resp.Body.Close()
}
