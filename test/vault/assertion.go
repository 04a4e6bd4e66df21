package vault

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// checkAssertion says why an assertion does not prove that its bearer is p.
// It is either one of the federated tokens that p has, or a JWT signed by the
// key of a certificate of p's for the token endpoint at base.
func checkAssertion(p *Principal, assertion, base string, now time.Time) *tokenError {
	if slices.Contains(p.Assertions, assertion) {
		return nil
	}
	bad := func(code int, text string) *tokenError { return &tokenError{401, "invalid_client", code, text} }
	parts := strings.Split(assertion, ".")
	if len(parts) != 3 {
		return bad(50027, "JWT token is invalid or malformed.")
	}
	var header assertionHeader
	var claims struct {
		Aud string      `json:"aud"`
		Iss string      `json:"iss"`
		Sub string      `json:"sub"`
		Exp json.Number `json:"exp"`
		Nbf json.Number `json:"nbf"`
	}
	signature, err := decode(parts[2])
	if !readPart(parts[0], &header) || !readPart(parts[1], &claims) || err != nil {
		return bad(50027, "JWT token is invalid or malformed.")
	}
	if !strings.EqualFold(claims.Iss, p.ClientID) {
		return bad(700213, "No matching federated identity record found for presented assertion. Check your federated identity credential Subject, Audience and Issuer against the presented assertion.")
	}
	cert, known := p.signer(header)
	if cert == nil {
		return bad(50027, "JWT token is invalid or malformed.")
	}
	if !known {
		return bad(700027, "The certificate with identifier used to sign the client assertion is not registered on application.")
	}
	if !verify(cert, header.Alg, parts[0]+"."+parts[1], signature) {
		return bad(700027, "Client assertion failed signature validation.")
	}
	exp, err1 := claims.Exp.Int64()
	nbf, err2 := claims.Nbf.Int64()
	// Assertions are made by the client's clock: as much leeway as the service gives.
	const leeway = 5 * time.Minute
	switch {
	case err1 != nil || err2 != nil || now.Add(-leeway).Unix() > exp || now.Add(leeway).Unix() < nbf:
		return bad(700024, "Client assertion is not within its valid time range.")
	case !strings.EqualFold(claims.Sub, p.ClientID):
		return bad(700021, "Client assertion application identifier doesn't match 'client_id' parameter.")
	case !strings.HasPrefix(strings.ToLower(claims.Aud), strings.ToLower(base)+"/"):
		return bad(700023, "Client assertion audience claim does not match Realm issuer.")
	case now.After(cert.NotAfter):
		return bad(7000222, "The provided client certificate is expired.")
	}
	return nil
}

type assertionHeader struct {
	Alg  string   `json:"alg"`
	X5T  string   `json:"x5t"`
	S256 string   `json:"x5t#S256"`
	X5C  []string `json:"x5c"` // the chain, leaf first
}

// names reports whether the header's thumbprint is that of cert.
func (h assertionHeader) names(cert *x509.Certificate) bool {
	sha1Sum, sha256Sum := sha1.Sum(cert.Raw), sha256.Sum256(cert.Raw)
	return sameThumbprint(h.S256, sha256Sum[:]) || sameThumbprint(h.X5T, sha1Sum[:])
}

// signer finds the certificate that an assertion is signed with, and whether
// it is one of p's: registered, or brought along and issued by whom p trusts.
// A chain that does not fit the thumbprint makes the whole malformed: nil.
func (p *Principal) signer(h assertionHeader) (cert *x509.Certificate, known bool) {
	i := slices.IndexFunc(p.Certificates, h.names)
	if len(h.X5C) > 0 {
		der, err := base64.StdEncoding.DecodeString(h.X5C[0])
		if err != nil {
			return nil, false
		}
		if cert, err = x509.ParseCertificate(der); err != nil || !h.names(cert) {
			return nil, false
		}
		return cert, i >= 0 || slices.ContainsFunc(p.Issuers, func(issuer *x509.Certificate) bool { return cert.CheckSignatureFrom(issuer) == nil })
	}
	if i < 0 {
		return &x509.Certificate{}, false
	}
	return p.Certificates[i], true
}

func readPart(part string, into any) bool {
	b, err := decode(part)
	return err == nil && json.Unmarshal(b, into) == nil
}

// sameThumbprint accepts both base64 alphabets, as clients use either.
func sameThumbprint(s string, sum []byte) bool {
	return s != "" && slices.Contains([]string{
		base64.StdEncoding.EncodeToString(sum), base64.RawURLEncoding.EncodeToString(sum), base64.URLEncoding.EncodeToString(sum),
	}, s)
}

func verify(cert *x509.Certificate, alg, signed string, signature []byte) bool {
	pub, ok := cert.PublicKey.(*rsa.PublicKey)
	if !ok {
		return false
	}
	digest := sha256.Sum256([]byte(signed))
	switch alg {
	case "PS256":
		return rsa.VerifyPSS(pub, crypto.SHA256, digest[:], signature, nil) == nil
	case "RS256":
		return rsa.VerifyPKCS1v15(pub, crypto.SHA256, digest[:], signature) == nil
	}
	return false
}
