package plugin

import (
	"encoding/base64"
	"fmt"

	"azure-kms-plugin/keyvault"
)

// A Format is the way in which an Encrypt answer is written. Clusters exist in
// both, so Decrypt reads both; neither existing plugin reads the other's.
type Format int

const (
	// Azure is the format of Azure/kubernetes-kms: the vault encrypts the
	// seed, and the ciphertext is the block as base64url text.
	Azure Format = iota
	// OpenShift is the format of OpenShift's fork: the vault encrypts the
	// seed as base64url text, and the ciphertext is the block.
	OpenShift
)

// ParseFormat reads the name of a format; the empty name is Azure's.
func ParseFormat(s string) (Format, error) {
	switch s {
	case "", "azure":
		return Azure, nil
	case "openshift":
		return OpenShift, nil
	}
	return Azure, fmt.Errorf("%q is not a ciphertext format: write azure or openshift", s)
}

func (f Format) String() string {
	switch f {
	case Azure:
		return "azure"
	case OpenShift:
		return "openshift"
	}
	return fmt.Sprintf("Format(%d)", int(f))
}

// Set makes *Format a flag.Value.
func (f *Format) Set(s string) error {
	v, err := ParseFormat(s)
	if err != nil {
		return err
	}
	*f = v
	return nil
}

// maxInner is the longest message that RSA-OAEP-256 can carry, with the
// longest key that Key Vault has: 4096 bits less two hashes and two bytes.
const maxInner = 512 - 2*32 - 2

// text is unpadded base64url that refuses a second spelling of the same bytes.
// It still skips line ends, so lengths are checked around it.
var text = base64.RawURLEncoding.Strict()

// inner returns what the vault is to encrypt for seed.
func (f Format) inner(seed []byte) ([]byte, error) {
	if len(seed) == 0 {
		return nil, badRequest(keyvault.OpEncrypt, "the plaintext is empty")
	}
	longest := maxInner
	if f == OpenShift {
		longest = text.DecodedLen(maxInner)
	}
	if len(seed) > longest {
		return nil, badRequest(keyvault.OpEncrypt, fmt.Sprintf(
			"the plaintext has %d bytes, and no RSA key can encrypt more than %d in the %s format", len(seed), longest, f))
	}
	if f == OpenShift {
		return text.AppendEncode(nil, seed), nil
	}
	return seed, nil
}

// seed undoes inner.
func (f Format) seed(inner []byte) ([]byte, error) {
	if f != OpenShift {
		return inner, nil
	}
	seed, ok := decodeText(inner)
	if !ok {
		return nil, &keyvault.Error{
			Op: keyvault.OpDecrypt, Reason: keyvault.BadCiphertext,
			Text: "the block was decrypted, but does not hold base64url text as OpenShift's format has it",
		}
	}
	return seed, nil
}

// outer returns the ciphertext to store for a block.
func (f Format) outer(block []byte) []byte {
	if f == OpenShift {
		return block
	}
	return text.AppendEncode(nil, block)
}

// parseCiphertext tells the format of a stored ciphertext and returns the
// block in it. The lengths differ, but for 512 bytes: the text of a 3072-bit
// key's block or the block of a 4096-bit key. A random block of that size is
// valid text once in 2^1024 times, so there the characters decide.
func parseCiphertext(ciphertext []byte) (Format, []byte, error) {
	switch len(ciphertext) {
	case 0:
		return 0, nil, badRequest(keyvault.OpDecrypt, "the ciphertext is empty")
	case 342, 683:
		if block, ok := decodeText(ciphertext); ok {
			return Azure, block, nil
		}
		return 0, nil, badRequest(keyvault.OpDecrypt, fmt.Sprintf("the ciphertext has the length of base64url text (%d) but is none", len(ciphertext)))
	case 512:
		if block, ok := decodeText(ciphertext); ok {
			return Azure, block, nil
		}
		return OpenShift, ciphertext, nil
	case 256, 384:
		return OpenShift, ciphertext, nil
	}
	return 0, nil, badRequest(keyvault.OpDecrypt, fmt.Sprintf(
		"the ciphertext has %d bytes: an RSA block has 256, 384 or 512, its base64url text 342, 512 or 683", len(ciphertext)))
}

// decodeText decodes base64url text, and only the one spelling that encodes it.
func decodeText(b []byte) ([]byte, bool) {
	out := make([]byte, text.DecodedLen(len(b)))
	n, err := text.Decode(out, b)
	// Skipped line ends show in the length.
	if err != nil || text.EncodedLen(n) != len(b) {
		return nil, false
	}
	return out[:n], true
}

const (
	annotationVersion    = "version.azure.akv.io"
	annotationAlgorithm  = "algorithm.azure.akv.io"
	annotationKeyVersion = "key-version.azure.akv.io"

	wireVersion   = "1"
	wireAlgorithm = "RSA-OAEP-256"
)

// Every object in etcd carries the annotations, so there are no others.
func annotationsFor(key keyvault.Ref) map[string][]byte {
	return map[string][]byte{
		annotationVersion:    []byte(wireVersion),
		annotationAlgorithm:  []byte(wireAlgorithm),
		annotationKeyVersion: []byte(key.Version),
	}
}

// parseAnnotations checks that the object was written in a way that this
// package knows and returns the key version that it claims, or "". Annotations
// of others are none of our business: Azure/kubernetes-kms stores three more.
func parseAnnotations(annotations map[string][]byte) (versionHint string, err error) {
	for _, must := range []struct{ key, value string }{
		{annotationVersion, wireVersion},
		{annotationAlgorithm, wireAlgorithm},
	} {
		switch got, ok := annotations[must.key]; {
		case !ok:
			return "", badRequest(keyvault.OpDecrypt, fmt.Sprintf("annotation %s is missing: it must be %q", must.key, must.value))
		case string(got) != must.value:
			return "", badRequest(keyvault.OpDecrypt, fmt.Sprintf("annotation %s is %.32q: it must be %q", must.key, got, must.value))
		}
	}
	if hint := string(annotations[annotationKeyVersion]); keyvault.IsVersion(hint) {
		return hint, nil
	}
	return "", nil
}
