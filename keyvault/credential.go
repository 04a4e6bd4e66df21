package keyvault

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

// CredentialOptions are what azure.json does not say.
type CredentialOptions struct {
	// WorkloadIdentity is needed with useWorkloadIdentityExtension.
	WorkloadIdentity WorkloadIdentity
	// CAFile, RootCAs, Transport and Proxy are as in ClientConfig.
	CAFile    string
	RootCAs   *x509.CertPool
	Transport http.RoundTripper
	Proxy     *ProxyMode
	// Warn is told, once, what keeps azure.json or a file that it names from
	// being used while what was read before still is, be it the file itself or
	// the sign-in host's refusal; Info, that this is over.
	// nil drops it. They must not block.
	Warn func(text string)
	Info func(text string)
}

// WorkloadIdentity is what the workload identity webhook sets in the
// environment: AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE.
type WorkloadIdentity struct {
	ClientID  string
	TenantID  string
	TokenFile string
}

// A Credential signs in to Azure. Every token is fetched anew, with what
// azure.json and the files that it names say at that time: the cache is the
// client's, which knows when a vault has refused a token.
type Credential struct {
	opts      CredentialOptions
	transport *transporter

	mu    sync.Mutex
	cfg   *AzureConfig // the last good one; guarded by mu, as is the rest
	used  *identity    // the last good one; nil before it is needed
	taken *identity    // the last that got a token; nil once it is refused
	// takenFor is what it got tokens for.
	takenFor map[TokenRequest]bool
	fault    string // that was reported last; empty when all is well

	proven                 fingerprint // of the last that got a token, or of the first that was read
	reloads, failedReloads uint64

	looks chan struct{} // holds one while the files are looked at
}

// NewCredential checks all that can be checked without the network.
func NewCredential(cfg *AzureConfig, opts CredentialOptions) (*Credential, error) {
	m, err := cfg.method()
	if err != nil {
		return nil, prefixEach(cfg.path, err)
	}
	rt, err := roundTripper(opts.Transport, opts.RootCAs, opts.CAFile, opts.Proxy, forwardToLogin)
	if err != nil {
		return nil, err
	}
	c := &Credential{cfg: cfg, opts: opts, transport: newTransporter(rt), looks: make(chan struct{}, 1)}
	if m == methodWorkload {
		// Its token is short-lived, so it is nobody's fault to be here a moment
		// before it.
		err = opts.WorkloadIdentity.orFrom(cfg).check()
	} else {
		c.used, err = c.read(cfg, nil)
	}
	if err != nil {
		return nil, prefixEach(cfg.path, err)
	}
	if c.used != nil {
		c.proven = c.used.fingerprint()
	}
	return c, nil
}

// orFrom takes from azure.json what the environment does not say.
func (w WorkloadIdentity) orFrom(cfg *AzureConfig) WorkloadIdentity {
	if w.ClientID == "" {
		w.ClientID = cfg.ClientID
	}
	if w.TenantID == "" {
		w.TenantID = cfg.TenantID
	}
	return w
}

func (w WorkloadIdentity) check() error {
	var errs []error
	for _, v := range []struct{ name, value string }{
		{"AZURE_CLIENT_ID", w.ClientID}, {"AZURE_TENANT_ID", w.TenantID}, {"AZURE_FEDERATED_TOKEN_FILE", w.TokenFile},
	} {
		if v.value == "" {
			errs = append(errs, fmt.Errorf("useWorkloadIdentityExtension needs %s in the environment", v.name))
		}
	}
	return errors.Join(errs...)
}

// Method names the way to sign in, for logs.
func (c *Credential) Method() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg.Method()
}

// String does not show what is inside.
func (c *Credential) String() string { return c.Method() }

// Format keeps every verb from the fields.
func (c *Credential) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.Method())) }

// Token implements TokenSource. An identity that the sign-in host refuses may be
// the half of a file that is being written: the one before it is tried, once,
// if it is another one and got the last token.
func (c *Credential) Token(ctx context.Context, req TokenRequest) (azcore.AccessToken, error) {
	id, fault := c.current()
	if id == nil {
		// The file has become unreadable or useless since the start; another
		// version of it may come.
		return azcore.AccessToken{}, &Error{Reason: CredentialsUnavailable, Text: oneLine(fault), Err: fault}
	}
	tk, failure := c.signIn(ctx, id, req)
	if failure == nil {
		c.accepted(id, req, fault)
		return tk, nil
	}
	if old := c.fallBack(id, req, failure); old != nil {
		tk, again := c.signIn(ctx, old, req)
		if again == nil {
			c.accepted(old, req, errors.Join(fault, errors.New(failure.Text)))
			return tk, nil
		}
		c.fallBack(old, req, again) // forgets it, if it is refused too
	}
	c.failed(fault)
	return azcore.AccessToken{}, failure.withFault(fault)
}

// signIn gets a token for one identity. What it sees is its own: neither the
// caller's request nor another identity's says why this one has failed.
func (c *Credential) signIn(ctx context.Context, id *identity, req TokenRequest) (azcore.AccessToken, *Error) {
	tr := &trace{start: time.Now()}
	tr.show(ctx)
	ctx = context.WithValue(ctx, traceKey{}, tr)
	if failure := id.checkTenant(req.TenantID); failure != nil {
		return azcore.AccessToken{}, failure
	}
	cred, err := id.build(c.transport)
	if err != nil {
		return azcore.AccessToken{}, &Error{Reason: CredentialsUnavailable, Text: err.Error(), Err: err}
	}
	tro := policy.TokenRequestOptions{Scopes: []string{req.Scope}}
	if id.method == methodManaged {
		ctx = local(ctx)
		// Its library keeps tokens for the life of the process; any claims at
		// all make it ask again, and are not sent.
		tro.Claims = `{"access_token":{}}`
	}
	var answer *http.Response
	tk, err := cred.GetToken(policy.WithCaptureResponse(ctx, &answer), tro)
	if err != nil {
		return azcore.AccessToken{}, id.failure(ctx, err, answer)
	}
	return tk, nil
}

// withFault adds to a refusal what kept a newer identity from being used.
func (e *Error) withFault(fault error) *Error {
	if fault != nil && e.Reason == CredentialsRefused {
		e.Text += "; what was read before was used, because " + oneLine(fault)
	}
	return e
}
