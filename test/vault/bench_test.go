package vault_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"azure-kms-plugin/test/vault"
	"github.com/stretchr/testify/require"
)

// BenchmarkDecrypt shows what the emulator adds to the cryptography, at a
// concurrency of 64.
func BenchmarkDecrypt(b *testing.B) {
	srv, err := vault.Start(vault.Config{})
	require.NoError(b, err)
	defer srv.Close()
	v := srv.Vault("kvlab")
	_, err = v.CreateKey("k1", options())
	require.NoError(b, err)
	block, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, &sharedKey().PublicKey, make([]byte, 32), nil)
	require.NoError(b, err)
	rt := srv.Transport()
	defer rt.CloseIdleConnections()
	hc := &http.Client{Transport: rt}
	res, err := hc.PostForm("https://login.microsoftonline.com/"+srv.TenantID+"/oauth2/token", url.Values{
		"grant_type": {"client_credentials"}, "client_id": {srv.ClientID}, "client_secret": {srv.ClientSecret}, "resource": {v.Audience()},
	})
	require.NoError(b, err)
	answer, err := io.ReadAll(res.Body)
	require.NoError(b, err)
	res.Body.Close()
	_, token, _ := strings.Cut(string(answer), `"access_token":"`)
	token, _, _ = strings.Cut(token, `"`)

	b.Run("raw", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := sharedKey().Decrypt(rand.Reader, block, &rsa.OAEPOptions{Hash: 5}); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("HTTP", func(b *testing.B) {
		b.SetParallelism(32)
		body := `{"alg":"RSA-OAEP-256","value":"` + base64.RawURLEncoding.EncodeToString(block) + `"}`
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				req, err := http.NewRequest(http.MethodPost, v.URL()+"/keys/k1/decrypt?api-version=2025-07-01", strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+token)
				res, err := hc.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != 200 {
					b.Error(res.Status)
				}
			}
		})
	})
}
