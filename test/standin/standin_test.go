package standin_test

import (
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/standin"
	"azure-kms-plugin/test/vault"
)

const vaultName = "kvlab"

// serve starts a stand-in for the format, with the key of the vector in its
// vault, and returns a client.
func (v *vector) serve(t *testing.T, format standin.Format) kmsapi.KeyManagementServiceClient {
	t.Helper()
	srv, err := vault.Start(vault.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { srv.Close() })
	require.NoError(t, srv.Vault(vaultName).ImportKey(v.KeyName, v.KeyVersion, v.key(t)))
	return serve(t, standin.Config{Format: format, Server: srv, Vault: vaultName, Key: v.KeyName, Version: v.KeyVersion})
}

// serve starts a stand-in on a socket of its own.
func serve(t *testing.T, cfg standin.Config) kmsapi.KeyManagementServiceClient {
	t.Helper()
	cfg.Socket = filepath.Join(t.TempDir(), "s")
	p, err := standin.New(cfg)
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(p.Stop)
	return dial(t, cfg.Socket)
}

func dial(t *testing.T, socket string) kmsapi.KeyManagementServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return kmsapi.NewKeyManagementServiceClient(conn)
}

// Each stand-in reads what its plugin has written, and writes the like.
func TestPlugin_IsLikeTheRecorded(t *testing.T) {
	for name, v := range vectors(t) {
		t.Run(name, func(t *testing.T) {
			kms := v.serve(t, v.format())
			st, err := kms.Status(t.Context(), &kmsapi.StatusRequest{})
			require.NoError(t, err)
			require.Equal(t, []string{"v2beta1", "ok", v.KeyID}, []string{st.Version, st.Healthz, st.KeyId})

			theirs := v.request(t)
			opened, err := kms.Decrypt(t.Context(), theirs)
			require.NoError(t, err)
			require.Equal(t, unhex(t, v.PlaintextHex), opened.Plaintext)

			written, err := kms.Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: opened.Plaintext, Uid: "u"})
			require.NoError(t, err)
			require.Equal(t, v.KeyID, written.KeyId)
			require.Len(t, written.Ciphertext, len(theirs.Ciphertext))
			require.Equal(t, inner(t, v, theirs.Ciphertext), inner(t, v, written.Ciphertext), "what the vault was given")
			require.Equal(t, slices.Sorted(maps.Keys(theirs.Annotations)), slices.Sorted(maps.Keys(written.Annotations)))
			for key, value := range written.Annotations {
				require.NotEmpty(t, value, key)
			}
			for _, key := range []string{"version.azure.akv.io", "algorithm.azure.akv.io"} {
				require.Equal(t, theirs.Annotations[key], written.Annotations[key])
			}
		})
	}
}

// inner opens a ciphertext with the key itself.
func inner(t *testing.T, v *vector, ciphertext []byte) []byte {
	t.Helper()
	block := ciphertext
	if v.format() == standin.Azure {
		var err error
		block, err = base64.RawURLEncoding.DecodeString(string(ciphertext))
		require.NoError(t, err)
	}
	got, err := rsa.DecryptOAEP(sha256.New(), nil, v.key(t), block, nil)
	require.NoError(t, err)
	return got
}

// Neither plugin reads what the other has written.
func TestPlugin_RefusesTheOther(t *testing.T) {
	other := map[standin.Format]standin.Format{standin.Azure: standin.OpenShift, standin.OpenShift: standin.Azure}
	for name, v := range vectors(t) {
		t.Run(name, func(t *testing.T) {
			_, err := v.serve(t, other[v.format()]).Decrypt(t.Context(), v.request(t))
			require.Equal(t, codes.Unknown, status.Code(err))
		})
	}
}

// The checks before a decrypt are those of the existing plugins: what this
// project's plugin adds to the annotations does not disturb them.
func TestPlugin_Annotations(t *testing.T) {
	for _, name := range []string{"upstream", "openshift"} {
		v := vectors(t)[name]
		kms := v.serve(t, v.format())
		for _, c := range []struct {
			what  string
			spoil func(*kmsapi.DecryptRequest)
			want  string // of the error; empty: it is read
		}{
			{"an annotation that it does not know", func(r *kmsapi.DecryptRequest) {
				r.Annotations["key-version.azure.akv.io"] = []byte(v.KeyVersion)
			}, ""},
			{"only those that it reads", func(r *kmsapi.DecryptRequest) {
				maps.DeleteFunc(r.Annotations, func(k string, _ []byte) bool {
					return k != "version.azure.akv.io" && k != "algorithm.azure.akv.io"
				})
			}, ""},
			{"none", func(r *kmsapi.DecryptRequest) { r.Annotations = nil }, "annotations cannot be empty"},
			{"another key", func(r *kmsapi.DecryptRequest) { r.KeyId = strings.Repeat("0", 64) }, "does not match expected key id"},
			{"another algorithm", func(r *kmsapi.DecryptRequest) { r.Annotations["algorithm.azure.akv.io"] = []byte("RSA1_5") }, "algorithm RSA1_5"},
			{"another version", func(r *kmsapi.DecryptRequest) { r.Annotations["version.azure.akv.io"] = []byte("2") }, "version 2"},
		} {
			t.Run(name+"/"+c.what, func(t *testing.T) {
				req := v.request(t)
				c.spoil(req)
				resp, err := kms.Decrypt(t.Context(), req)
				if c.want == "" {
					require.NoError(t, err)
					require.Equal(t, unhex(t, v.PlaintextHex), resp.Plaintext)
					return
				}
				require.ErrorContains(t, err, c.want)
				require.Equal(t, codes.Unknown, status.Code(err))
			})
		}
	}
}

// Why the key stays pinned while an old plugin serves: each refuses data of
// another version of its own key, although the vault could decrypt it.
func TestPlugin_RefusesAnotherKeyVersion(t *testing.T) {
	srv, err := vault.Start(vault.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { srv.Close() })
	for _, format := range []standin.Format{standin.Azure, standin.OpenShift} {
		key := string(format)
		var kms []kmsapi.KeyManagementServiceClient
		for range 2 {
			version, err := srv.Vault(vaultName).CreateKey(key, vault.KeyOptions{})
			require.NoError(t, err)
			kms = append(kms, serve(t, standin.Config{Format: format, Server: srv, Vault: vaultName, Key: key, Version: version}))
		}
		rotated, err := kms[1].Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: make([]byte, 32)})
		require.NoError(t, err)
		req := &kmsapi.DecryptRequest{Ciphertext: rotated.Ciphertext, KeyId: rotated.KeyId, Annotations: rotated.Annotations}
		_, err = kms[1].Decrypt(t.Context(), req)
		require.NoError(t, err)
		before := srv.Calls()["decrypt"]
		_, err = kms[0].Decrypt(t.Context(), req)
		require.ErrorContains(t, err, "does not match expected key id", format)
		require.Equal(t, before, srv.Calls()["decrypt"], "it does not even ask")
	}
}

// A stand-in comes back on the same socket, and takes it from a dead one.
func TestPlugin_StartsAgain(t *testing.T) {
	v := vectors(t)["openshift"]
	srv, err := vault.Start(vault.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { srv.Close() })
	require.NoError(t, srv.Vault(vaultName).ImportKey(v.KeyName, v.KeyVersion, v.key(t)))
	socket := filepath.Join(t.TempDir(), "s")
	require.NoError(t, os.WriteFile(socket, nil, 0o600))
	p, err := standin.New(standin.Config{
		Format: standin.OpenShift, Server: srv, Vault: vaultName, Key: v.KeyName, Version: v.KeyVersion, Socket: socket,
	})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, p.Start())
		require.Error(t, p.Start())
		_, err := dial(t, socket).Decrypt(t.Context(), v.request(t))
		require.NoError(t, err)
		require.Equal(t, 1, p.Requests("decrypt"))
		p.Stop()
		require.NoFileExists(t, socket)
	}
}
