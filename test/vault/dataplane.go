package vault

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// IdentityFileOptions says how an identity file is made.
type IdentityFileOptions struct {
	// Host is the token endpoint. Default: westus2.login.microsoft.com.
	Host string
	// NotBefore is when the identity begins. Default: an hour ago.
	NotBefore time.Time
	// Life is how long it lasts from now. Default: 24 h.
	Life time.Duration
}

// IdentityFile returns the identity file of a managed identity, as the managed
// identity data plane hands it out and ARO's hosted control planes mount it. The
// identity becomes a principal, which signs in with any certificate that was
// issued here, as long as it brings that along. Each file has a new one, as PEM.
func (s *Server) IdentityFile(clientID string, o IdentityFileOptions) ([]byte, error) {
	if o.Host == "" {
		o.Host = "westus2" + regionalLogin
	}
	if !isLogin(o.Host) {
		return nil, fmt.Errorf("%q is not the host of a token endpoint", o.Host)
	}
	if o.NotBefore.IsZero() {
		o.NotBefore = time.Now().Add(-time.Hour)
	}
	if o.Life == 0 {
		o.Life = 24 * time.Hour
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("making an identity's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: clientID},
		NotBefore: o.NotBefore, NotAfter: time.Now().Add(o.Life), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.ca.cert, key.Public(), s.ca.key)
	if err != nil {
		return nil, fmt.Errorf("making an identity's certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("writing an identity's key: %w", err)
	}
	p := s.dir.principal(clientID)
	if p == nil {
		if err := s.AddPrincipal(Principal{ClientID: clientID, Issuers: []*x509.Certificate{s.ca.cert}}); err != nil {
			return nil, err
		}
		p = s.dir.principal(clientID)
	}
	secret := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	moment := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	return json.Marshal(map[string]any{
		"client_id": clientID, "tenant_id": p.TenantID, "object_id": p.ObjectID,
		"resource_id":             "/subscriptions/s/resourcegroups/r/providers/Microsoft.ManagedIdentity/userAssignedIdentities/kms",
		"client_secret":           base64.StdEncoding.EncodeToString(secret),
		"client_secret_url":       "https://control-eastus.identity.azure.net/",
		"authentication_endpoint": "https://" + o.Host + "/",
		"not_before":              moment(template.NotBefore),
		"not_after":               moment(template.NotAfter),
		"renew_after":             moment(time.Now().Add(o.Life / 2)),
		"cannot_renew_after":      moment(template.NotAfter.Add(o.Life)),
		"custom_claims":           map[string]any{},
	})
}

func (s *Server) adminIdentityFile(r *http.Request) (any, error) {
	var in struct {
		Host      string    `json:"host"`
		NotBefore time.Time `json:"notBefore"`
		Life      duration  `json:"life"`
	}
	if err := read(r, &in); err != nil {
		return nil, err
	}
	if in.Life < 0 {
		return nil, errors.New("life: a positive duration is needed")
	}
	file, err := s.IdentityFile(r.PathValue("client"), IdentityFileOptions{in.Host, in.NotBefore, time.Duration(in.Life)})
	return json.RawMessage(file), err
}
