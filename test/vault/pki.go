package vault

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"
)

// An authority issues the certificates that the listener shows, one for each
// name that a client asks for. It is safe for concurrent use.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// stranger signs what TLSUntrusted shows; nobody trusts it.
	stranger *authority

	mu     sync.Mutex
	leaves map[leafKind]*tls.Certificate // guarded by mu
}

type leafKind struct {
	name  string
	fault TLSFault
}

func newAuthority() (*authority, error) {
	ca, err := newRoot("Key Vault emulator CA")
	if err != nil {
		return nil, err
	}
	ca.stranger, err = newRoot("Key Vault emulator stranger")
	return ca, err
}

func newRoot(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the CA's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(1, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the CA: %w", err)
	}
	return &authority{cert: cert, key: key, leaves: map[leafKind]*tls.Certificate{}}, nil
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// leaf returns the certificate for a client that asks for name, with the
// given fault.
func (a *authority) leaf(name string, fault TLSFault) (*tls.Certificate, error) {
	kind := leafKind{name, fault}
	a.mu.Lock()
	defer a.mu.Unlock()
	if cert := a.leaves[kind]; cert != nil {
		return cert, nil
	}
	cert, err := a.issue(kind)
	if err != nil {
		return nil, err
	}
	a.leaves[kind] = cert
	return cert, nil
}

func (a *authority) issue(kind leafKind) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a certificate's key: %w", err)
	}
	name := kind.name
	if kind.fault == TLSWrongName {
		name = "wrong-name.example"
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(0, 6, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	if kind.name == "localhost" {
		// A client that dials an address sends no name.
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	if kind.fault == TLSExpired {
		template.NotBefore, template.NotAfter = time.Now().AddDate(0, 0, -2), time.Now().Add(-time.Hour)
	}
	signer := a
	if kind.fault == TLSUntrusted {
		signer = a.stranger
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer.cert, key.Public(), signer.key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate for %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, signer.cert.Raw}, PrivateKey: key}, nil
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return n
}
