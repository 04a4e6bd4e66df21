package keyvault

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
)

// maxInFlight bounds the interactive calls under way. It is what a vault's
// quota and a small node can bear; the rest wait their turn.
const maxInFlight = 64

// waitSlot is what a call says that it waits for when too many are in flight.
const waitSlot = "a free slot"

// waitToken is the same while the sign-in host has not given one.
const waitToken = "a token"

// A ClientConfig says how to call vaults.
type ClientConfig struct {
	// Credential fetches tokens. Required.
	Credential TokenSource
	// CAFile is a PEM file of authorities that are trusted besides the system's.
	CAFile string
	// RootCAs replaces the system's authorities and CAFile, for tests.
	RootCAs *x509.CertPool
	// Transport replaces the HTTP transport, for tests.
	Transport http.RoundTripper
	// Proxy sends all requests by way of a forwarding service. Optional.
	Proxy *ProxyMode
	// Wrap uses wrapKey and unwrapKey in the place of encrypt and decrypt: the
	// same bytes for an RSA key, another permission.
	Wrap bool
	// UserAgent goes before the SDK's own.
	UserAgent string
	// OnCall is told of each HTTP exchange with a vault, but for the first of a
	// host, which only asks which token it wants. It must not block.
	OnCall func(Call)
	// OnOutcome is told of the end of each operation that reached for a vault.
	// It must not block.
	OnOutcome func(Outcome)
}

// A Client does single operations on keys of any vault.
type Client struct {
	options   azkeys.ClientOptions
	wrap      bool
	onOutcome func(Outcome)
	breaker   *breaker
	slots     chan struct{}
	found     findings

	mu    sync.Mutex
	hosts map[string]*azkeys.Client // by lower-case host; guarded by mu
}

// NewClient makes a client. It makes no call.
func NewClient(cfg ClientConfig) (*Client, error) {
	if cfg.Credential == nil {
		return nil, errors.New("a credential is required")
	}
	rt, err := roundTripper(cfg.Transport, cfg.RootCAs, cfg.CAFile, cfg.Proxy, forwardToVault)
	if err != nil {
		return nil, err
	}
	return &Client{
		options: azkeys.ClientOptions{ClientOptions: azcore.ClientOptions{
			Transport:        newTransporter(rt),
			PerRetryPolicies: []policy.Policy{newAuthPolicy(cfg.Credential), &attemptPolicy{cfg.UserAgent, cfg.OnCall}},
		}},
		wrap:      cfg.Wrap,
		onOutcome: cfg.OnOutcome,
		breaker:   newBreaker(),
		slots:     make(chan struct{}, maxInFlight),
		found:     findings{keys: map[string]finding{}},
		hosts:     map[string]*azkeys.Client{},
	}, nil
}

// roundTripper makes the transport of a client or credential.
func roundTripper(rt http.RoundTripper, roots *x509.CertPool, caFile string, proxy *ProxyMode, target string) (http.RoundTripper, error) {
	if rt == nil {
		if roots == nil {
			var err error
			if roots, err = loadRoots(caFile); err != nil {
				return nil, err
			}
		}
		rt = newTransport(roots)
	}
	if proxy != nil {
		return proxy.wrap(rt, target)
	}
	return rt, nil
}

// host returns the SDK's client of a vault.
func (c *Client) host(host string) (*azkeys.Client, error) {
	host = strings.ToLower(host)
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.hosts[host]; k != nil {
		return k, nil
	}
	// No credential: our own policy signs.
	k, err := azkeys.NewClient("https://"+host, nil, &c.options)
	if err == nil {
		c.hosts[host] = k
	}
	return k, err
}

// do runs one operation: leave from the breaker, a slot, the call itself, and
// what its end is evidence of. fn must use the context and client that it gets.
func (c *Client) do(ctx context.Context, op Op, ref Ref, fn func(context.Context, *azkeys.Client, *call) error) *Error {
	background := isBackground(ctx)
	cl := &call{op: op, ref: ref}
	evidence := c.onOutcome != nil
	if op == opDeleted {
		cl.op, evidence = OpGet, false
	}
	ctx, cancel := withBudget(ctx)
	defer cancel()
	ctx, tr := withTrace(ctx)
	deadline, _ := ctx.Deadline()
	cl.budget = time.Until(deadline)
	if ctx.Err() != nil {
		return cl.ended(ctx)
	}

	if _, open := c.breaker.enter(op, ref, background, true); open != nil {
		return open
	}
	if !background {
		select {
		case c.slots <- struct{}{}:
		default:
			tr.wait(waitSlot)
			select {
			case c.slots <- struct{}{}:
				tr.wait("")
			case <-ctx.Done():
				return cl.ended(ctx)
			}
		}
	}
	free := func() {
		if !background {
			<-c.slots
		}
	}
	leave, open := c.breaker.enter(op, ref, background, false)
	if open != nil {
		free()
		return open
	}
	if last := leave.slow(); last != nil && !background && reads(op) {
		// Whoever repeats a failing Decrypt many times a second gets the answer at once.
		cl.alone = true
		go func() {
			defer free()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cl.budget)
			defer cancel()
			deadline, _ := ctx.Deadline()
			c.make(ctx, deadline, cl, leave, evidence, fn)
		}()
		return last
	}
	defer free()
	return c.make(ctx, deadline, cl, leave, evidence, fn)
}

// make makes the one call that leave is for, and reports how it has ended.
func (c *Client) make(ctx context.Context, deadline time.Time, cl *call, leave *pass, evidence bool, fn func(context.Context, *azkeys.Client, *call) error) *Error {
	op, ref := leave.op, leave.ref
	failure := c.guarded(cl.context(ctx, deadline, isBackground(ctx), leave.trial()), cl, fn)
	if cl.hasty(failure) {
		leave.done(&Error{Reason: Canceled}) // as one who gave up
		return failure
	}
	if op != opDeleted {
		failure = c.explain(ctx, failure)
	}
	if failure == nil && op != opDeleted && op != OpList {
		c.found.used(ref)
	}
	leave.done(failure)
	if evidence && (failure == nil || failure.Reason != Canceled) {
		c.onOutcome(Outcome{Op: op, Key: ref, Err: failure, Time: time.Now()})
	}
	return failure
}

// reads reports whether an operation opens what is encrypted.
func reads(op Op) bool { return op == OpDecrypt || op == OpUnwrap }

// hasty reports whether the call ended because its caller had little patience,
// which says nothing about the vault and must not count for other callers.
func (cl *call) hasty(failure *Error) bool {
	return failure != nil && (failure.Cause == CauseTimeout || failure.Cause == CauseDNS) && timedOut(failure) && cl.budget < minEvidence
}

// guarded makes the call and survives a panic of the SDK: odd answers of a
// device between us and the vault have caused some.
func (c *Client) guarded(ctx context.Context, cl *call, fn func(context.Context, *azkeys.Client, *call) error) (failure *Error) {
	defer func() {
		if r := recover(); r != nil {
			failure = &Error{Op: cl.op, Key: cl.ref, Reason: Unknown, Text: fmt.Sprintf("%s: the client library panicked (%T)", where(cl.ref), r)}
		}
	}()
	keys, err := c.host(cl.ref.Host)
	if err != nil {
		return &Error{Op: cl.op, Key: cl.ref, Reason: Unknown, Text: where(cl.ref) + ": no client could be made", Err: err}
	}
	ctx = policy.WithCaptureResponse(ctx, &cl.response)
	if err := fn(ctx, keys, cl); err != nil {
		return cl.failure(ctx, err)
	}
	return nil
}

// context gives the SDK what it needs to know of the call.
func (cl *call) context(ctx context.Context, deadline time.Time, background, trial bool) context.Context {
	retries := int32(1)
	switch {
	case trial:
		retries = -1 // a vault in trouble is asked once
	case background:
		retries = 2
	}
	ctx = context.WithValue(ctx, callKey{}, cl)
	ctx = context.WithValue(ctx, hostKey{}, strings.ToLower(cl.ref.Host))
	return policy.WithRetryOptions(ctx, policy.RetryOptions{
		MaxRetries:    retries,
		RetryDelay:    retryDelay,
		MaxRetryDelay: maxRetryDelay,
		// No time-out per try: a slow answer is better than none.
		ShouldRetry: func(resp *http.Response, err error) bool {
			if !retryable(resp, err) {
				return false
			}
			pause := 3 * retryDelay
			if resp != nil {
				if asked := retryAfter(resp.Header, time.Now()); asked > maxRetryDelay {
					return false
				} else if asked > 0 {
					pause = asked
				}
			}
			return time.Until(deadline) > pause
		},
	})
}
