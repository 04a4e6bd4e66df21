package standin_test

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/standin"
)

// recorded is where the product keeps what the existing plugins have written.
const recorded = "../../plugin/testdata"

// A vector is an answer that an existing plugin gave.
type vector struct {
	Plugin         string
	VaultHost      string
	KeyName        string
	KeyVersion     string
	PrivateKey     string `json:"privateKeyPEMFile"`
	PlaintextHex   string
	CiphertextHex  string
	KeyID          string `json:"keyId"`
	AnnotationsHex map[string]string
}

func (v *vector) format() standin.Format {
	if v.Plugin == "openshift" {
		return standin.OpenShift
	}
	return standin.Azure
}

func (v *vector) request(t *testing.T) *kmsapi.DecryptRequest {
	req := &kmsapi.DecryptRequest{KeyId: v.KeyID, Ciphertext: unhex(t, v.CiphertextHex), Annotations: map[string][]byte{}}
	for k, h := range v.AnnotationsHex {
		req.Annotations[k] = unhex(t, h)
	}
	return req
}

func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func vectors(t *testing.T) map[string]*vector {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(recorded, "*-v2.json"))
	require.NoError(t, err)
	require.Len(t, paths, 6)
	all := map[string]*vector{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		require.NoError(t, err)
		v := &vector{}
		require.NoError(t, json.Unmarshal(b, v))
		require.Equal(t, vaultName+".vault.azure.net", v.VaultHost)
		all[strings.TrimSuffix(filepath.Base(p), "-v2.json")] = v
	}
	return all
}

// key reads the key that a vector was made with.
func (v *vector) key(t *testing.T) *rsa.PrivateKey {
	b, err := os.ReadFile(filepath.Join(recorded, v.PrivateKey))
	require.NoError(t, err)
	block, _ := pem.Decode(b)
	require.NotNil(t, block)
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	return key.(*rsa.PrivateKey)
}
