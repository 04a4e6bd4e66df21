package stack

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// servingFiles are the credentials of one kube-apiserver, valid for a day.
type servingFiles struct {
	ca, cert, key  string // PEM files
	serviceAccount string // private key that signs service account tokens
	pool           *x509.CertPool
}

// makeServingFiles writes a new CA, a certificate of it for the loopback
// interface, and a service account key into dir.
func makeServingFiles(dir string) (servingFiles, error) {
	f := servingFiles{
		ca:             filepath.Join(dir, "ca.crt"),
		cert:           filepath.Join(dir, "serving.crt"),
		key:            filepath.Join(dir, "serving.key"),
		serviceAccount: filepath.Join(dir, "service-account.key"),
		pool:           x509.NewCertPool(),
	}
	caKey, err := writeKey(filepath.Join(dir, "ca.key"))
	if err != nil {
		return f, err
	}
	from := time.Now().Add(-time.Minute)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: from, NotAfter: from.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if err := writeCert(f.ca, ca, ca, caKey, caKey); err != nil {
		return f, err
	}
	key, err := writeKey(f.key)
	if err != nil {
		return f, err
	}
	if err := writeCert(f.cert, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: from, NotAfter: from.Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, key, caKey); err != nil {
		return f, err
	}
	if _, err := writeKey(f.serviceAccount); err != nil {
		return f, err
	}
	pem, err := os.ReadFile(f.ca)
	if err != nil {
		return f, err
	}
	if !f.pool.AppendCertsFromPEM(pem) {
		return f, fmt.Errorf("reading %s: no certificate", f.ca)
	}
	return f, nil
}

func writeKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

func writeCert(path string, cert, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("signing %s: %w", path, err)
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
}
