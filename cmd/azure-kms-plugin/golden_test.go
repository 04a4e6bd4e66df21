package main

import (
	"bytes"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"
)

// What both existing plugins wrote is read by the program, whatever it writes
// and with whichever key, and what it writes has their shape.
func TestServe_Golden(t *testing.T) {
	srv, err := vault.Start(vault.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { srv.Close() })
	v := srv.Vault("kvlab")
	const dir = "../../plugin/testdata/"
	paths, err := filepath.Glob(dir + "*-v2.json")
	require.NoError(t, err)
	require.Len(t, paths, 6)
	type vector struct {
		KeyVersion, PlaintextHex, CiphertextHex, KeyID string
		PrivateKeyPEMFile                              string
		AnnotationsHex                                 map[string]string
	}
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	vectors, keys := map[string]vector{}, map[string]*rsa.PrivateKey{}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		require.NoError(t, err)
		var vec vector
		require.NoError(t, json.Unmarshal(data, &vec))
		vectors[filepath.Base(p)] = vec
		if keys[vec.KeyVersion] != nil {
			continue
		}
		data, err = os.ReadFile(dir + vec.PrivateKeyPEMFile)
		require.NoError(t, err)
		block, _ := pem.Decode(data)
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		require.NoError(t, err)
		keys[vec.KeyVersion] = key.(*rsa.PrivateKey)
		require.NoError(t, v.ImportKey("k1", vec.KeyVersion, keys[vec.KeyVersion]))
	}
	for _, format := range []string{"azure", "openshift"} {
		for version, key := range keys {
			t.Run(fmt.Sprintf("%s, %d bits", format, key.N.BitLen()), func(t *testing.T) {
				l := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), nil, "--ciphertext-format="+format)
				client := l.client(t)
				for name, vec := range vectors {
					req := &kmsapi.DecryptRequest{Ciphertext: unhex(vec.CiphertextHex), KeyId: vec.KeyID, Annotations: map[string][]byte{}}
					for k, a := range vec.AnnotationsHex {
						req.Annotations[k] = unhex(a)
					}
					d, err := client.Decrypt(in3s(t), req)
					require.NoError(t, err, name)
					require.Equal(t, vec.PlaintextHex, hex.EncodeToString(d.Plaintext), name)
				}
				e := l.encrypt(t, []byte(seed))
				require.Equal(t, l.ref().KeyID(), e.KeyId)
				block := e.Ciphertext
				if format == "azure" {
					block, err = base64.RawURLEncoding.Strict().DecodeString(string(e.Ciphertext))
					require.NoError(t, err)
				}
				require.Len(t, block, key.Size())
				inner, err := rsa.DecryptOAEP(sha256.New(), nil, key, block, nil)
				require.NoError(t, err)
				want := []byte(seed)
				if format == "openshift" {
					want = []byte(base64.RawURLEncoding.EncodeToString(want))
				}
				require.True(t, bytes.Equal(want, inner))
			})
		}
	}
}

var _ = keyvault.Success
