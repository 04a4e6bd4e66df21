package keyvault

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
)

// An identity is all that a token request needs. Every file has been read by
// the time there is one, so it stays good while the files change.
type identity struct {
	method    method
	authority string // URL of the sign-in host
	tenant    string
	client    string // application, or the managed identity by either ID
	// secret is a client secret or a federated token.
	secret      Secret
	certificate *clientCertificate
	// cfg is the azure.json that it was read by.
	cfg *AzureConfig
	// source names what the tenant is written in, for texts.
	source string
	// notBefore orders the versions of a data-plane identity file.
	notBefore time.Time
	// expires is when it is of no more use; zero if this machine cannot tell.
	expires time.Time
}

// expired reports whether a token request would be in vain.
func (id *identity) expired() bool { return !id.expires.IsZero() && time.Now().After(id.expires) }

// readIdentity reads what azure.json and the files that it names say now.
func readIdentity(cfg *AzureConfig, w WorkloadIdentity) (*identity, error) {
	m, err := cfg.method()
	if err != nil {
		return nil, err
	}
	id := &identity{cfg: cfg, method: m, authority: cfg.Cloud().Authority, tenant: cfg.TenantID, client: cfg.ClientID, source: "tenantId in azure.json"}
	switch m {
	case methodSecret:
		id.secret = cfg.ClientSecret
	case methodCertificate:
		if id.certificate, err = readCertificate(cfg.ClientCertPath, cfg.ClientCertPassword); err != nil {
			return nil, fmt.Errorf("aadClientCertPath: %w", err)
		}
		id.expires = id.certificate.chain[0].NotAfter
	case methodWorkload:
		w = w.orFrom(cfg)
		if err := w.check(); err != nil {
			return nil, err
		}
		id.tenant, id.client, id.source = w.TenantID, w.ClientID, "AZURE_TENANT_ID"
		assertion, end, err := readAssertion(w.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("the federated token: %w", err)
		}
		id.secret, id.expires = NewSecret(assertion), end
	case methodManaged:
		id.client = cfg.UserAssignedIdentityID
	case methodDataPlane:
		if err := id.readDataPlane(cfg.MSIDataPlanePath); err != nil {
			return nil, prefixEach("aadMSIDataPlaneIdentityPath", err)
		}
	}
	return id, nil
}

// same reports whether other would send the same. The key is that of the
// certificate, so it is not compared.
func (id *identity) same(other *identity) bool {
	return id.method == other.method && id.authority == other.authority && id.tenant == other.tenant && id.client == other.client &&
		id.secret.Reveal() == other.secret.Reveal() && slices.EqualFunc(id.chain(), other.chain(), (*x509.Certificate).Equal)
}

// chain is what of the certificate is sent; nil without one.
func (id *identity) chain() []*x509.Certificate {
	if id.certificate == nil {
		return nil
	}
	return id.certificate.chain
}

// checkTenant refuses a vault of another directory before any secret is sent.
// A tenant that is written as a domain name cannot be compared.
func (id *identity) checkTenant(vaults string) *Error {
	if id.method == methodManaged || vaults == "" || !guidForm().MatchString(id.tenant) || strings.EqualFold(vaults, id.tenant) {
		return nil
	}
	// Which they are is not said: the text is shown to people of neither.
	return &Error{Reason: CredentialsRefused, Text: "the vault belongs to another tenant than the credential: check " + id.source +
		" and the vault's name (az keyvault show --query properties.tenantId shows the vault's)"}
}

// build makes a credential of the SDK. A new one has an empty token cache.
func (id *identity) build(transport policy.Transporter) (azcore.TokenCredential, error) {
	options := azcore.ClientOptions{
		Cloud:     cloud.Configuration{ActiveDirectoryAuthorityHost: id.authority},
		Transport: transport,
		// The SDK's own times are made for jobs, not for a request that waits.
		Retry: policy.RetryOptions{MaxRetries: 1, RetryDelay: 200 * time.Millisecond, MaxRetryDelay: 2 * time.Second},
	}
	switch id.method {
	case methodSecret:
		return azidentity.NewClientSecretCredential(id.tenant, id.client, id.secret.Reveal(),
			&azidentity.ClientSecretCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true})
	case methodCertificate, methodDataPlane:
		return azidentity.NewClientCertificateCredential(id.tenant, id.client, id.certificate.chain, id.certificate.key,
			&azidentity.ClientCertificateCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true, SendCertificateChain: true})
	case methodWorkload:
		return azidentity.NewClientAssertionCredential(id.tenant, id.client, func(context.Context) (string, error) { return id.secret.Reveal(), nil },
			&azidentity.ClientAssertionCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true})
	case methodManaged:
		// The metadata service restarts with its host: 404 and 410 pass. It wants
		// to be asked no more than once a second: the SDK takes 0.8 to 1.3 times
		// the delay.
		options.Retry = policy.RetryOptions{MaxRetries: 2, RetryDelay: 1250 * time.Millisecond, MaxRetryDelay: 3 * time.Second, TryTimeout: fetchTimeout}
		mi := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: options}
		switch {
		case id.client == "":
		case isResourceID(id.client):
			mi.ID = azidentity.ResourceID(id.client)
		default:
			mi.ID = azidentity.ClientID(id.client)
		}
		return azidentity.NewManagedIdentityCredential(mi)
	}
	return nil, errors.New("no way to sign in")
}
