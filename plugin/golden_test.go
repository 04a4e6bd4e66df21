package plugin_test

import (
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

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

func (v *vector) format() plugin.Format {
	if v.Plugin == "openshift" {
		return plugin.OpenShift
	}
	return plugin.Azure
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
	paths, err := filepath.Glob("testdata/*-v2.json")
	require.NoError(t, err)
	require.Len(t, paths, 6)
	out := map[string]*vector{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		require.NoError(t, err)
		v := &vector{}
		require.NoError(t, json.Unmarshal(b, v))
		require.Contains(t, []string{"upstream", "openshift"}, v.Plugin)
		out[strings.TrimSuffix(filepath.Base(p), ".json")] = v
	}
	return out
}

func (v *vector) serve(t *testing.T) (*rig, *rsa.PrivateKey) {
	key := readKey(t, v.PrivateKey)
	r := newRig(t, func(c *plugin.Config) { c.Format = v.format() })
	r.keyring.current = keyvault.Ref{Host: v.VaultHost, Name: v.KeyName, Version: v.KeyVersion}
	r.keyring.keys = map[string]*rsa.PrivateKey{v.KeyVersion: key}
	require.NoError(t, r.Listen())
	r.run()
	t.Cleanup(func() { r.cancel(); <-r.done })
	return r, key
}

// What either plugin has written is read, whatever this one writes.
func TestGolden_Decrypt(t *testing.T) {
	for name, v := range vectors(t) {
		t.Run(name, func(t *testing.T) {
			r, _ := v.serve(t)
			require.Equal(t, v.KeyID, r.keyring.KeyID(""))
			resp, err := r.dial(t).Decrypt(in3s(t), v.request(t))
			require.NoError(t, err)
			require.Equal(t, unhex(t, v.PlaintextHex), resp.Plaintext)
		})
	}
}

// What is written has the vectors' exact shape once opened with the raw key.
func TestGolden_EncryptShape(t *testing.T) {
	alphabet := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	open := func(t *testing.T, key *rsa.PrivateKey, f plugin.Format, ciphertext []byte) []byte {
		block := ciphertext
		if f == plugin.Azure {
			require.Empty(t, strings.Trim(string(ciphertext), alphabet))
			var err error
			block, err = base64.RawURLEncoding.DecodeString(string(ciphertext))
			require.NoError(t, err)
		}
		require.Len(t, block, key.Size())
		inner, err := rsa.DecryptOAEP(sha256.New(), nil, key, block, nil)
		require.NoError(t, err)
		return inner
	}
	for name, v := range vectors(t) {
		t.Run(name, func(t *testing.T) {
			r, key := v.serve(t)
			theirs := v.request(t)
			ours, err := r.dial(t).Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: unhex(t, v.PlaintextHex), Uid: "u"})
			require.NoError(t, err)

			require.Len(t, ours.Ciphertext, len(theirs.Ciphertext))
			require.Equal(t, open(t, key, v.format(), theirs.Ciphertext), open(t, key, v.format(), ours.Ciphertext), "what the vault was given")
			require.Equal(t, v.KeyID, ours.KeyId)
			require.Equal(t, map[string][]byte{
				"version.azure.akv.io":     theirs.Annotations["version.azure.akv.io"],
				"algorithm.azure.akv.io":   theirs.Annotations["algorithm.azure.akv.io"],
				"key-version.azure.akv.io": []byte(v.KeyVersion),
			}, ours.Annotations)

			back, err := r.dial(t).Decrypt(in3s(t), decryptOf(ours))
			require.NoError(t, err)
			require.Equal(t, unhex(t, v.PlaintextHex), back.Plaintext)
		})
	}
}
