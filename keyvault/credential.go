package keyvault

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
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
}

// WorkloadIdentity is what the workload identity webhook sets in the
// environment: AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE.
type WorkloadIdentity struct {
	ClientID  string
	TenantID  string
	TokenFile string
}

// A Credential signs in to Azure. Every token is fetched anew, with the
// certificate or federated token that is on disk at that time: the cache is the
// client's, which knows when a vault has refused a token.
type Credential struct {
	cfg       *AzureConfig
	opts      CredentialOptions
	method    method
	tenant    string
	transport *transporter

	mu          sync.Mutex
	certificate *clientCertificate // the last good one; guarded by mu
}

// NewCredential checks all that can be checked without the network.
func NewCredential(cfg *AzureConfig, opts CredentialOptions) (*Credential, error) {
	m, err := cfg.method()
	if err != nil {
		return nil, prefixEach(cfg.path, err)
	}
	c := &Credential{cfg: cfg, opts: opts, method: m, tenant: cfg.TenantID}
	switch m {
	case methodWorkload:
		if c.opts.WorkloadIdentity.ClientID == "" {
			c.opts.WorkloadIdentity.ClientID = cfg.ClientID
		}
		if c.opts.WorkloadIdentity.TenantID == "" {
			c.opts.WorkloadIdentity.TenantID = cfg.TenantID
		}
		c.tenant = c.opts.WorkloadIdentity.TenantID
		err = c.opts.WorkloadIdentity.check()
	case methodCertificate:
		if _, err = c.currentCertificate(); err != nil {
			err = fmt.Errorf("aadClientCertPath: %w", err)
		}
	case methodDataPlane:
		err = errors.New("aadMSIDataPlaneIdentityPath is not supported yet: use workload identity, managed identity, a client secret or a client certificate")
	}
	if err != nil {
		return nil, prefixEach(cfg.path, err)
	}
	rt, err := roundTripper(opts.Transport, opts.RootCAs, opts.CAFile, opts.Proxy, forwardToLogin)
	if err != nil {
		return nil, err
	}
	c.transport = newTransporter(rt)
	return c, nil
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
func (c *Credential) Method() string { return string(c.method) }

// String does not show what is inside.
func (c *Credential) String() string { return c.Method() }

// Format keeps every verb from the fields.
func (c *Credential) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.Method())) }

// Token implements TokenSource.
func (c *Credential) Token(ctx context.Context, req TokenRequest) (azcore.AccessToken, error) {
	if failure := c.checkTenant(req.TenantID); failure != nil {
		return azcore.AccessToken{}, failure
	}
	cred, err := c.build()
	if err != nil {
		// The file has become unreadable or useless since the start; another
		// version of it may come.
		return azcore.AccessToken{}, &Error{Reason: CredentialsUnavailable, Text: err.Error(), Err: err}
	}
	tro := policy.TokenRequestOptions{Scopes: []string{req.Scope}}
	if c.method == methodManaged {
		// Its library keeps tokens for the life of the process; any claims at
		// all make it ask again, and are not sent.
		tro.Claims = `{"access_token":{}}`
	}
	tk, err := cred.GetToken(ctx, tro)
	if err != nil {
		return azcore.AccessToken{}, c.failure(ctx, err)
	}
	return tk, nil
}

// checkTenant refuses a vault of another directory before any secret is sent.
// A tenant that is written as a domain name cannot be compared.
func (c *Credential) checkTenant(vaults string) *Error {
	if c.method == methodManaged || vaults == "" || !guidForm().MatchString(c.tenant) || strings.EqualFold(vaults, c.tenant) {
		return nil
	}
	return &Error{Reason: CredentialsRefused, Text: fmt.Sprintf(
		"the vault belongs to tenant %s, the credential to tenant %s: check tenantId in azure.json and the vault's name", vaults, clean(c.tenant, 36))}
}

// currentCertificate reads the certificate file. While that is useless, perhaps
// because it is just being written, the one before still signs in.
func (c *Credential) currentCertificate() (*clientCertificate, error) {
	cert, err := readCertificate(c.cfg.ClientCertPath, c.cfg.ClientCertPassword)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.certificate = cert
	}
	if c.certificate == nil || err != nil && time.Now().After(c.certificate.chain[0].NotAfter) {
		return nil, err
	}
	return c.certificate, nil
}

// build makes a credential of the SDK. A new one has an empty token cache.
func (c *Credential) build() (azcore.TokenCredential, error) {
	options := azcore.ClientOptions{
		Cloud:     cloud.Configuration{ActiveDirectoryAuthorityHost: c.cfg.Cloud().Authority},
		Transport: c.transport,
		// The SDK's own times are made for jobs, not for a request that waits.
		Retry: policy.RetryOptions{MaxRetries: 1, RetryDelay: 200 * time.Millisecond, MaxRetryDelay: 2 * time.Second},
	}
	switch c.method {
	case methodSecret:
		return azidentity.NewClientSecretCredential(c.cfg.TenantID, c.cfg.ClientID, c.cfg.ClientSecret.Reveal(),
			&azidentity.ClientSecretCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true})
	case methodCertificate:
		cert, err := c.currentCertificate()
		if err != nil {
			return nil, err
		}
		return azidentity.NewClientCertificateCredential(c.cfg.TenantID, c.cfg.ClientID, cert.chain, cert.key,
			&azidentity.ClientCertificateCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true, SendCertificateChain: true})
	case methodWorkload:
		w := c.opts.WorkloadIdentity
		data, err := readFile(w.TokenFile, maxConfigSize)
		if err != nil {
			return nil, fmt.Errorf("the federated token: %w", err)
		}
		assertion := string(bytes.TrimSpace(data))
		if assertion == "" {
			return nil, fmt.Errorf("the federated token: %s: empty file", w.TokenFile)
		}
		return azidentity.NewClientAssertionCredential(w.TenantID, w.ClientID, func(context.Context) (string, error) { return assertion, nil },
			&azidentity.ClientAssertionCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true})
	case methodManaged:
		// The metadata service restarts with its host: 404 and 410 pass.
		options.Retry = policy.RetryOptions{MaxRetries: 2, RetryDelay: 500 * time.Millisecond, MaxRetryDelay: 3 * time.Second, TryTimeout: fetchTimeout}
		mi := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: options}
		switch id := c.cfg.UserAssignedIdentityID; {
		case id == "":
		case isResourceID(id):
			mi.ID = azidentity.ResourceID(id)
		default:
			mi.ID = azidentity.ClientID(id)
		}
		return azidentity.NewManagedIdentityCredential(mi)
	}
	return nil, errors.New("no way to sign in")
}
