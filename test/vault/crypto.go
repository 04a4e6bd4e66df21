package vault

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"strings"
	"time"
)

// crypt is one of the four operations on data. No lock is held.
func (v *Vault) crypt(op Op, ver *version, algorithm string, value []byte) ([]byte, *apiError) {
	if fault := v.usable(op, ver); fault != nil {
		return nil, fault
	}
	var digest func() hash.Hash
	switch strings.ToUpper(algorithm) {
	case "RSA-OAEP-256":
		digest = sha256.New
	case "RSA-OAEP":
		digest = sha1.New
	case "RSA1_5":
	default:
		return nil, badParameter(textBadProperty)
	}
	if op == OpEncrypt || op == OpWrapKey {
		var block []byte
		var err error
		if digest != nil {
			block, err = rsa.EncryptOAEP(digest(), rand.Reader, &ver.priv.PublicKey, value, nil)
		} else {
			//lint:ignore SA1019 the service offers it, and KMS v1 data was written so
			block, err = rsa.EncryptPKCS1v15(rand.Reader, &ver.priv.PublicKey, value)
		}
		if err != nil {
			return nil, badParameter(textBadProperty) // too long for the key
		}
		return block, nil
	}
	if digest != nil {
		plain, err := ver.priv.Decrypt(rand.Reader, value, &rsa.OAEPOptions{Hash: hashOf(algorithm)})
		if err != nil {
			return nil, badParameter(textBadOAEP)
		}
		return plain, nil
	}
	//lint:ignore SA1019 see above
	plain, err := rsa.DecryptPKCS1v15(rand.Reader, ver.priv, value)
	if err != nil {
		return nil, badParameter(textBadPKCS1)
	}
	return plain, nil
}

func hashOf(algorithm string) crypto.Hash {
	if strings.EqualFold(algorithm, "RSA-OAEP") {
		return crypto.SHA1
	}
	return crypto.SHA256
}

// usable says why a version cannot be used for op: key_ops, enabled, and, for
// what makes new data only, the time in which it is valid.
func (v *Vault) usable(op Op, ver *version) *apiError {
	allowed := false
	for _, o := range ver.ops {
		allowed = allowed || strings.EqualFold(o, string(op))
	}
	if !allowed {
		return forbidden("KeyOperationForbidden", forbiddenText("KeyOperationForbidden", op, ""))
	}
	writes := op == OpEncrypt || op == OpWrapKey
	if !ver.enabled && (!writes || !v.srv.cfg.EncryptWhenDisabled) {
		return forbidden("KeyDisabled", forbiddenText("KeyDisabled", op, ""))
	}
	now := v.now()
	switch {
	case !writes:
		return nil
	case !ver.exp.IsZero() && !now.Before(ver.exp):
		return forbidden("KeyExpired", forbiddenText("KeyExpired", op, ""))
	case !ver.nbf.IsZero() && now.Before(ver.nbf):
		return forbidden("KeyNotYetValid", forbiddenText("KeyNotYetValid", op, ""))
	}
	return nil
}

// encode and decode are the wire form of bytes; padding is accepted.
func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func decode(s string) ([]byte, error) {
	return base64.RawURLEncoding.DecodeString(strings.TrimRight(s, "="))
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}
