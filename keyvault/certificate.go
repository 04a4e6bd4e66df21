package keyvault

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"software.sslmate.com/src/go-pkcs12"
)

// A clientCertificate is a service principal's key with its chain, leaf first.
type clientCertificate struct {
	key   *rsa.PrivateKey
	chain []*x509.Certificate
}

// errPassword is a password that is wrong or missing.
var errPassword = errors.New("the password does not open it")

// readCertificate reads a client certificate in PEM or PKCS#12. Each way for it
// to be useless has its own message: "wrong password" is said of nothing else.
func readCertificate(path string, password Secret) (*clientCertificate, error) {
	data, err := readFile(path, maxConfigSize)
	if err != nil {
		return nil, err
	}
	defer clear(data)
	c, err := parseCertificate(data, password)
	switch {
	case errors.Is(err, errPassword) && password.IsZero():
		err = errors.New("the PKCS#12 file has a password: set aadClientCertPassword")
	case errors.Is(err, errPassword):
		err = errors.New("aadClientCertPassword is not the password of this PKCS#12 file")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func parseCertificate(data []byte, password Secret) (*clientCertificate, error) {
	var key crypto.PrivateKey
	var chain []*x509.Certificate
	var err error
	if bytes.Contains(data, []byte("-----BEGIN ")) {
		key, chain, err = parsePEM(data)
	} else {
		key, chain, err = parsePKCS12(data, password)
	}
	if err != nil {
		return nil, err
	}
	return pair(key, chain, time.Now())
}

func parsePEM(data []byte) (key crypto.PrivateKey, chain []*x509.Certificate, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "CERTIFICATE":
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, errors.New("a CERTIFICATE block is malformed")
			}
			chain = append(chain, cert)
		case "ENCRYPTED PRIVATE KEY":
			return nil, nil, errors.New("the PEM private key is encrypted: use PKCS#12 for a key with a password")
		case "PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY":
			if block.Headers["DEK-Info"] != "" {
				return nil, nil, errors.New("the PEM private key is encrypted: use PKCS#12 for a key with a password")
			}
			if key, err = parseKey(block); err != nil {
				return nil, nil, fmt.Errorf("the %s block is malformed", block.Type)
			}
		}
	}
	return key, chain, nil
}

func parseKey(block *pem.Block) (crypto.PrivateKey, error) {
	switch block.Type {
	case "RSA PRIVATE KEY":
		return x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		return x509.ParseECPrivateKey(block.Bytes)
	}
	return x509.ParsePKCS8PrivateKey(block.Bytes)
}

func parsePKCS12(data []byte, password Secret) (crypto.PrivateKey, []*x509.Certificate, error) {
	key, cert, rest, err := pkcs12.DecodeChain(data, password.Reveal())
	switch {
	case errors.Is(err, pkcs12.ErrIncorrectPassword):
		return nil, nil, errPassword
	case err != nil:
		var unsupported pkcs12.NotImplementedError
		if errors.As(err, &unsupported) {
			return nil, nil, errors.New("the PKCS#12 file uses an encryption that is not supported: export it again with AES-256 and SHA-256")
		}
		return nil, nil, errors.New("neither PEM nor a readable PKCS#12 file with one key and its certificate")
	}
	return key, append([]*x509.Certificate{cert}, rest...), nil
}

// pair finds the certificate of the key and puts it first. One that was renewed
// may lie beside the one before it: of those that are valid, the one that is so
// longest counts.
func pair(key crypto.PrivateKey, chain []*x509.Certificate, now time.Time) (*clientCertificate, error) {
	switch {
	case key == nil:
		return nil, errors.New("no private key in the file")
	case len(chain) == 0:
		return nil, errors.New("no certificate in the file")
	}
	rsaKey, ok := key.(*rsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the private key is not RSA (%s): signing in needs an RSA key", keyKind(key))
	}
	best, fault := -1, errors.New("no certificate in the file belongs to its private key")
	for i, cert := range chain {
		switch {
		case !rsaKey.PublicKey.Equal(cert.PublicKey):
		case now.After(cert.NotAfter):
			fault = fmt.Errorf("the certificate has expired at %s", cert.NotAfter.UTC().Format(time.RFC3339))
		case now.Before(cert.NotBefore):
			fault = fmt.Errorf("the certificate is not valid before %s", cert.NotBefore.UTC().Format(time.RFC3339))
		case best < 0 || cert.NotAfter.After(chain[best].NotAfter):
			best = i
		}
	}
	if best < 0 {
		return nil, fault
	}
	// The library signs with the last certificate of the key that it is given.
	others := slices.DeleteFunc(slices.Clone(chain), func(c *x509.Certificate) bool { return rsaKey.PublicKey.Equal(c.PublicKey) })
	return &clientCertificate{rsaKey, append([]*x509.Certificate{chain[best]}, others...)}, nil
}

func keyKind(key crypto.PrivateKey) string {
	if _, ok := key.(*ecdsa.PrivateKey); ok {
		return "EC"
	}
	return "another kind"
}
