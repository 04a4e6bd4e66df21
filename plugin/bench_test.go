package plugin_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

// instant is a keyring that takes no time, so that only this package is measured.
type instant struct{ block []byte }

func (instant) KeyID(string) string { return ref(version1).KeyID() }
func (i instant) Encrypt(context.Context, string, []byte) ([]byte, keyvault.Ref, error) {
	return i.block, ref(version1), nil
}

func (i instant) Decrypt(context.Context, string, string, []byte) ([]byte, keyvault.Ref, error) {
	return i.block[:32], ref(version1), nil
}

func benchClient(b *testing.B) *client {
	r := serve(b, func(c *plugin.Config) {
		c.Keyring, c.Logger, c.Observe = instant{make([]byte, 256)}, nil, nil
	})
	c := r.dial(b)
	c.status(b)
	b.ReportAllocs()
	return c
}

func BenchmarkStatus(b *testing.B) {
	c := benchClient(b)
	for b.Loop() {
		if _, err := c.Status(context.Background(), &kmsapi.StatusRequest{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncrypt(b *testing.B) {
	c := benchClient(b)
	for b.Loop() {
		if _, err := c.Encrypt(context.Background(), &kmsapi.EncryptRequest{Plaintext: seed()}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecrypt(b *testing.B) {
	c := benchClient(b)
	e, err := c.Encrypt(context.Background(), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(b, err)
	for b.Loop() {
		if _, err := c.Decrypt(context.Background(), decryptOf(e)); err != nil {
			b.Fatal(err)
		}
	}
}
