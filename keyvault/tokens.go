package keyvault

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
)

const (
	// fetchTimeout bounds one token request, which no caller's deadline does.
	fetchTimeout = 10 * time.Second
	// expirySkew is how early a token counts as expired: the clocks of two
	// machines and the way to the vault.
	expirySkew = 10 * time.Second
	// minRefresh is how soon the sign-in host may want a token renewed. What is
	// nearer, or past, would have every call fetch one.
	minRefresh = time.Minute
	// maxEntries bounds the memory of audiences, which vaults name.
	maxEntries = 64
	// maxUnavailablePause and maxRefusedPause bound the doubling pause after
	// failed token requests: a fault heals by itself, a refusal by a person.
	maxUnavailablePause = 5 * time.Second
	maxRefusedPause     = 30 * time.Second
)

// A TokenRequest says which token a vault wants.
type TokenRequest struct {
	// Scope is the audience with "/.default".
	Scope string
	// TenantID is the vault's directory, "" if it did not say.
	TenantID string
}

// A TokenSource fetches tokens. Token must return a new one every time: keeping
// them is the client's part. Its errors should be *Error, of reason
// CredentialsRefused or CredentialsUnavailable.
type TokenSource interface {
	Token(ctx context.Context, req TokenRequest) (azcore.AccessToken, error)
}

// tokenCache keeps the current token of each audience. A fetch belongs to no
// caller: it runs to its own end, and every caller waits only as long as its
// own context lets it.
type tokenCache struct {
	source TokenSource

	mu      sync.Mutex
	entries map[TokenRequest]*tokenEntry // guarded by mu, as are the entries
}

type tokenEntry struct {
	token     string
	expires   time.Time
	refreshAt time.Time
	fetching  chan struct{} // closed at the end of the fetch under way; nil without one
	progress  *progress     // of that fetch
	err       *Error        // of the last fetch; nil after a good one
	failures  int           // failed fetches in a row
	nextFetch time.Time
	renewals  int       // tokens that the vault has refused in a row
	renewed   time.Time // when the last of them was dropped
}

func newTokenCache(source TokenSource) *tokenCache {
	return &tokenCache{source: source, entries: map[TokenRequest]*tokenEntry{}}
}

func (c *tokenCache) entry(req TokenRequest) *tokenEntry {
	e := c.entries[req]
	if e == nil {
		if len(c.entries) >= maxEntries {
			maps.DeleteFunc(c.entries, func(_ TokenRequest, e *tokenEntry) bool { return e.fetching == nil })
		}
		e = &tokenEntry{}
		c.entries[req] = e
	}
	return e
}

// delay says why there is no token yet, as far as can be told while the fetch
// goes on: what that waits for, or how the one before it has ended.
func (c *tokenCache) delay(req TokenRequest) *Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(req)
	if e.fetching != nil {
		if now := e.progress.failure(); now != nil {
			return now
		}
	}
	return e.err
}

// get returns a valid token, and fetches the next one ahead of its expiry
// without letting anybody wait.
func (c *tokenCache) get(ctx context.Context, req TokenRequest) (string, *Error) {
	for {
		c.mu.Lock()
		e, now := c.entry(req), time.Now()
		valid := e.token != "" && now.Before(e.expires)
		due := !valid || !now.Before(e.refreshAt)
		if due && e.fetching == nil && !now.Before(e.nextFetch) {
			e.fetching, e.progress = make(chan struct{}), &progress{}
			go c.fetch(req, e.fetching, e.progress)
		}
		token, failure, fetching := e.token, e.err, e.fetching
		c.mu.Unlock()

		switch {
		case valid:
			return token, nil
		case fetching == nil && failure != nil:
			return "", failure // inside the pause after a failed fetch
		case fetching == nil:
			return "", &Error{Reason: CredentialsUnavailable, Text: "the token has run out as soon as it came, and another one is not due yet: is this machine's clock right?"}
		}
		tr := traceOf(ctx)
		tr.waitFor(waitToken, func() *Error { return c.delay(req) })
		select {
		case <-fetching:
			tr.wait("")
		case <-ctx.Done():
			return "", &Error{Reason: CredentialsUnavailable, Cause: CauseTimeout, Text: "no token in time", Err: context.Cause(ctx)}
		}
	}
}

// renew drops a token that the vault has refused and returns another one. It
// reports false if none may be fetched yet: a vault that refuses every token
// must not make us hammer the sign-in host.
func (c *tokenCache) renew(ctx context.Context, req TokenRequest, refused string) (token string, failure *Error, ok bool) {
	c.mu.Lock()
	e, now := c.entry(req), time.Now()
	if e.token == refused && refused != "" {
		pause := min(time.Second<<min(e.renewals, 6), maxRefusedPause)
		if e.renewals > 0 && now.Before(e.renewed.Add(pause)) {
			c.mu.Unlock()
			return "", nil, false
		}
		e.token, e.renewed, e.nextFetch = "", now, time.Time{}
		e.renewals++
	}
	c.mu.Unlock()
	token, failure = c.get(ctx, req)
	return token, failure, true
}

// accepted notes that the vault has taken a token.
func (c *tokenCache) accepted(req TokenRequest) {
	c.mu.Lock()
	c.entry(req).renewals = 0
	c.mu.Unlock()
}

// fetch runs detached: the caller that happened to start it may leave. Its
// context is not the caller's in any way, because the SDK finds the options of
// the caller's own request there.
func (c *tokenCache) fetch(req TokenRequest, done chan struct{}, p *progress) {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), progressKey{}, p), fetchTimeout)
	defer cancel()
	tk, err := c.token(ctx, req)

	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(done)
	e, now := c.entry(req), time.Now()
	e.fetching = nil
	if err != nil {
		e.err = err
		e.failures++
		limit := maxUnavailablePause
		if err.Reason == CredentialsRefused {
			limit = maxRefusedPause
		}
		e.nextFetch = now.Add(max(min(time.Second<<min(e.failures-1, 6), limit), err.pause))
		return
	}
	e.token, e.err, e.failures = tk.Token, nil, 0
	e.expires = tk.ExpiresOn.Add(-expirySkew)
	// Half the remaining life of short tokens, five minutes of long ones.
	e.refreshAt = tk.ExpiresOn.Add(-min(tk.ExpiresOn.Sub(now)/2, 5*time.Minute))
	if tk.RefreshOn.After(now.Add(minRefresh)) && tk.RefreshOn.Before(e.refreshAt) {
		e.refreshAt = tk.RefreshOn
	}
	e.nextFetch = now.Add(time.Second)
	if !now.Before(e.expires) {
		e.token = ""
		e.err = &Error{Reason: CredentialsUnavailable, Text: "the sign-in host gave a token that has already expired: is this machine's clock right?"}
	}
}

// token calls the source and turns whatever happens, a panic too, into words.
func (c *tokenCache) token(ctx context.Context, req TokenRequest) (tk azcore.AccessToken, failure *Error) {
	defer func() {
		if r := recover(); r != nil {
			failure = &Error{Reason: CredentialsUnavailable, Text: fmt.Sprintf("the sign-in library panicked (%T)", r)}
		}
	}()
	tk, err := c.source.Token(ctx, req)
	switch {
	case err == nil && tk.Token == "":
		return tk, &Error{Reason: CredentialsUnavailable, Text: "the sign-in host gave an empty token"}
	case err == nil && strings.ContainsFunc(tk.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		// Every request with it would fail, as if the network had.
		return tk, &Error{Reason: CredentialsUnavailable, Text: "the sign-in host gave a token with characters that no HTTP header can hold"}
	case err == nil:
		return tk, nil
	}
	if e := asError(err); e != nil {
		return tk, e
	}
	return tk, &Error{Reason: CredentialsUnavailable, Text: "no token could be fetched", Err: err}
}
