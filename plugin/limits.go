package plugin

import (
	"fmt"
	"regexp"
	"sync"

	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
)

// What kube-apiserver accepts, from its envelope encryption code. It refuses an
// answer beyond them, so one must not leave here; and nothing beyond them can
// be in etcd, so such a request is not worth a vault call.
const (
	maxCiphertext  = 1 << 10
	maxKeyID       = 1 << 10
	maxAnnotations = 32 << 10
)

// domainForm is two DNS labels or more, as kube-apiserver wants annotation keys.
var domainForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`)
})

// checkDecrypt reports what of a request can be refused unread.
func checkDecrypt(req *kmsapi.DecryptRequest) error {
	switch {
	case req.GetKeyId() == "":
		return badRequest(keyvault.OpDecrypt, "the key ID is empty")
	case !keyvault.IsKeyID(req.GetKeyId()):
		return badRequest(keyvault.OpDecrypt, "the key ID is not the lower-case hexadecimal SHA-256 of a key's URL: another plugin wrote this object")
	case len(req.GetCiphertext()) > maxCiphertext:
		return badRequest(keyvault.OpDecrypt, fmt.Sprintf("the ciphertext has %d bytes, and at most %d can be stored", len(req.GetCiphertext()), maxCiphertext))
	}
	if n := annotationsSize(req.GetAnnotations()); n > maxAnnotations {
		return badRequest(keyvault.OpDecrypt, fmt.Sprintf("the annotations have %d bytes, and at most %d can be stored", n, maxAnnotations))
	}
	return nil
}

// checkEncrypted reports why kube-apiserver, or this plugin later, would not
// take an answer. It is a bug of ours if it does.
func checkEncrypted(resp *kmsapi.EncryptResponse, f Format) error {
	if n := len(resp.Ciphertext); n == 0 || n > maxCiphertext {
		return fmt.Errorf("checking the answer: ciphertext of %d bytes", n)
	}
	if n := len(resp.KeyId); n == 0 || n > maxKeyID {
		return fmt.Errorf("checking the answer: key ID of %d bytes", n)
	}
	for k := range resp.Annotations {
		if len(k) > 255 || !domainForm().MatchString(k) {
			return fmt.Errorf("checking the answer: annotation key %q is no domain name", k)
		}
	}
	if n := annotationsSize(resp.Annotations); n > maxAnnotations {
		return fmt.Errorf("checking the answer: annotations of %d bytes", n)
	}
	if got, _, err := parseCiphertext(resp.Ciphertext); err != nil || got != f {
		return fmt.Errorf("checking the answer: it does not read back in the %s format", f)
	}
	return nil
}

func annotationsSize(annotations map[string][]byte) int {
	n := 0
	for k, v := range annotations {
		n += len(k) + len(v)
	}
	return n
}
