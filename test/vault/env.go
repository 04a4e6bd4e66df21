package vault

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
)

// CAFile is the CA's certificate as PEM; Close removes it.
func (s *Server) CAFile() string { return filepath.Join(s.tempDir, "ca.pem") }

// CertPool holds the CA's certificate.
func (s *Server) CertPool() *x509.CertPool { return s.ca.pool() }

// Addr is the address of the service itself.
func (s *Server) Addr() string { return s.main.addr.String() }

// ProxyURL is where an HTTP proxy leads the service's names here and refuses all others.
func (s *Server) ProxyURL() string { return "http://" + s.proxy.addr.String() }

// AdminURL is where the JSON API of the package documentation is.
func (s *Server) AdminURL() string { return "http://" + s.admin.Addr().String() }

// Env is what makes a child process reach the service under its real names. What
// runs on this machine is not asked for by way of the proxy: it knows nothing else.
func (s *Server) Env() []string {
	return []string{
		"HTTPS_PROXY=" + s.ProxyURL(), "https_proxy=" + s.ProxyURL(),
		"HTTP_PROXY=" + s.ProxyURL(), "http_proxy=" + s.ProxyURL(),
		"NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost", "SSL_CERT_FILE=" + s.CAFile(),
	}
}

// IdentityEnv is what makes a child process find its managed identity here in
// the style of App Service.
func (s *Server) IdentityEnv() []string {
	return []string{"IDENTITY_ENDPOINT=" + s.AdminURL() + "/identity/token", "IDENTITY_HEADER=" + s.identityHeader}
}

// AzureJSON writes azure.json with the default principal's secret into dir.
func (s *Server) AzureJSON(dir string) (string, error) {
	path := filepath.Join(dir, "azure.json")
	b, err := json.MarshalIndent(map[string]any{
		"cloud": "AzurePublicCloud", "tenantId": s.TenantID, "aadClientId": s.ClientID, "aadClientSecret": s.ClientSecret,
	}, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o600); err != nil {
		return "", err
	}
	return path, nil
}
