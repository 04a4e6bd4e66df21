package keyvault_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
	"software.sslmate.com/src/go-pkcs12"
)

func selfSigned(t *testing.T, key crypto.Signer, from, to time.Time) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

func pemOf(t *testing.T, key any, certs ...*x509.Certificate) []byte {
	t.Helper()
	var out []byte
	if key != nil {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		out = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

// Case A03: every way to write a certificate is read, and each fault has its own
// words.
func TestNewCredential_ClientCertificate(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	now := time.Now()
	good := selfSigned(t, key, now.Add(-time.Hour), now.Add(time.Hour))
	old := selfSigned(t, key, now.Add(-2*time.Hour), now.Add(-time.Hour))
	other := selfSigned(t, ec, now.Add(-time.Hour), now.Add(time.Hour))
	pfx := func(e *pkcs12.Encoder, key any, cert *x509.Certificate, password string) []byte {
		data, err := e.Encode(key, cert, nil, password)
		require.NoError(t, err)
		return data
	}
	for name, tt := range map[string]struct {
		data     []byte
		password string
		want     string // "" is good
	}{
		"pem":                    {data: pemOf(t, key, good)},
		"pem, chain first":       {data: pemOf(t, key, other, good)},
		"pem, renewed first":     {data: pemOf(t, key, good, old)},
		"pem, renewed last":      {data: pemOf(t, key, old, good)},
		"pfx, modern":            {data: pfx(pkcs12.Modern, key, good, "pw"), password: "pw"},
		"pfx, 3des":              {data: pfx(pkcs12.LegacyDES, key, good, "pw"), password: "pw"},
		"pfx, rc2":               {data: pfx(pkcs12.LegacyRC2, key, good, "pw"), password: "pw"},
		"pfx, no password":       {data: pfx(pkcs12.Modern, key, good, "")},
		"pfx, wrong password":    {data: pfx(pkcs12.Modern, key, good, "pw"), password: "PWCANARY", want: "aadClientCertPassword is not the password"},
		"pfx, password missing":  {data: pfx(pkcs12.Modern, key, good, "pw"), want: "set aadClientCertPassword"},
		"pfx, ec":                {data: pfx(pkcs12.Modern, ec, other, "pw"), password: "pw", want: "not RSA (EC)"},
		"pfx, expired":           {data: pfx(pkcs12.Modern, key, old, "pw"), password: "pw", want: "has expired at "},
		"pem, ec":                {data: pemOf(t, ec, other), want: "not RSA (EC)"},
		"pem, expired":           {data: pemOf(t, key, old), want: "has expired at "},
		"pem, not yet":           {data: pemOf(t, key, selfSigned(t, key, now.Add(time.Hour), now.Add(2*time.Hour))), want: "not valid before"},
		"pem, no key":            {data: pemOf(t, nil, good), want: "no private key"},
		"pem, no certificate":    {data: pemOf(t, key), want: "no certificate"},
		"pem, other certificate": {data: pemOf(t, key, other), want: "no certificate in the file belongs"},
		"pem, encrypted":         {data: pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}), want: "encrypted"},
		"pem, broken":            {data: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), want: "malformed"},
		"garbage":                {data: []byte("CANARY"), want: "neither PEM nor"},
		"empty":                  {data: nil, want: "empty file"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cert")
			require.NoError(t, os.WriteFile(path, tt.data, 0o600))
			cfg := &keyvault.AzureConfig{TenantID: "t", ClientID: "c", ClientCertPath: path, ClientCertPassword: keyvault.NewSecret(tt.password)}
			_, err := keyvault.NewCredential(cfg, keyvault.CredentialOptions{})
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
			require.ErrorContains(t, err, path)
			require.NotContains(t, err.Error(), "CANARY")
			if strings.Contains(name, "ec") || strings.Contains(name, "expired") {
				require.NotContains(t, err.Error(), "assword")
			}
		})
	}
}
