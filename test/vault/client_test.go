package vault_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"azure-kms-plugin/test/vault"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	"github.com/stretchr/testify/require"
)

// start begins an emulator that ends with the test.
func start(t *testing.T, cfg vault.Config) *vault.Server {
	t.Helper()
	srv, err := vault.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { srv.Close() })
	return srv
}

// options are those of a key that costs nothing to make.
func options() vault.KeyOptions { return vault.KeyOptions{Key: sharedKey()} }

var sharedKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// clientOptions are Microsoft's client's, without retries.
func clientOptions(rt http.RoundTripper) azcore.ClientOptions {
	return azcore.ClientOptions{
		Transport: &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		Retry:     policy.RetryOptions{MaxRetries: -1},
	}
}

// client is Microsoft's own client of a vault with the default principal.
func client(t *testing.T, srv *vault.Server, v *vault.Vault, rt http.RoundTripper) *azkeys.Client {
	t.Helper()
	return clientOf(t, srv, v, rt, srv.ClientID, srv.ClientSecret)
}

func clientOf(t *testing.T, srv *vault.Server, v *vault.Vault, rt http.RoundTripper, clientID, secret string) *azkeys.Client {
	t.Helper()
	cred, err := azidentity.NewClientSecretCredential(srv.TenantID, clientID, secret,
		&azidentity.ClientSecretCredentialOptions{ClientOptions: clientOptions(rt)})
	require.NoError(t, err)
	c, err := azkeys.NewClient(v.URL(), cred, &azkeys.ClientOptions{ClientOptions: clientOptions(rt)})
	require.NoError(t, err)
	return c
}

// proxied reaches the emulator as an unmodified program would: by the proxy.
func proxied(t *testing.T, srv *vault.Server) *http.Transport {
	t.Helper()
	u, err := url.Parse(srv.ProxyURL())
	require.NoError(t, err)
	rt := &http.Transport{Proxy: http.ProxyURL(u), TLSClientConfig: &tls.Config{RootCAs: srv.CertPool()}, ForceAttemptHTTP2: true}
	t.Cleanup(rt.CloseIdleConnections)
	return rt
}

func params(alg azkeys.EncryptionAlgorithm, value []byte) azkeys.KeyOperationParameters {
	return azkeys.KeyOperationParameters{Algorithm: to.Ptr(alg), Value: value}
}

// refusal returns the service's error in err.
func refusal(t *testing.T, err error) *azcore.ResponseError {
	t.Helper()
	var re *azcore.ResponseError
	require.True(t, errors.As(err, &re), "%v is not an answer of the service", err)
	return re
}

func TestMicrosoftsClientWorksInEveryWayToReachIt(t *testing.T) {
	for name, cfg := range map[string]vault.Config{"HTTP/1.1": {}, "HTTP/2": {HTTP2: true}} {
		for _, way := range []string{"transport", "proxy"} {
			t.Run(name+" by "+way, func(t *testing.T) {
				srv := start(t, cfg)
				v := srv.Vault("kvlab")
				first, err := v.CreateKey("k1", vault.KeyOptions{})
				require.NoError(t, err)
				rt := srv.Transport()
				if way == "proxy" {
					rt = proxied(t, srv)
				}
				defer rt.CloseIdleConnections()
				c := client(t, srv, v, rt)

				got, err := c.GetKey(t.Context(), "k1", "", nil)
				require.NoError(t, err)
				require.Equal(t, first, got.Key.KID.Version())
				require.Equal(t, "k1", got.Key.KID.Name())
				require.Equal(t, "https://kvlab.vault.azure.net/keys/k1/"+first, string(*got.Key.KID))
				require.Equal(t, azkeys.KeyTypeRSA, *got.Key.Kty)
				require.True(t, *got.Attributes.Enabled)
				require.Len(t, got.Key.N, 256)
				require.WithinDuration(t, time.Now(), *got.Attributes.Created, 5*time.Second)

				second, err := v.CreateKey("k1", vault.KeyOptions{Bits: 3072})
				require.NoError(t, err)
				for _, alg := range []azkeys.EncryptionAlgorithm{
					azkeys.EncryptionAlgorithmRSAOAEP256, azkeys.EncryptionAlgorithmRSAOAEP, azkeys.EncryptionAlgorithmRSA15,
				} {
					enc, err := c.Encrypt(t.Context(), "k1", "", params(alg, []byte("seed")), nil)
					require.NoError(t, err)
					require.Equal(t, second, enc.KID.Version())
					require.Len(t, enc.Result, 384)
					dec, err := c.Decrypt(t.Context(), "k1", second, params(alg, enc.Result), nil)
					require.NoError(t, err)
					require.Equal(t, []byte("seed"), dec.Result)
					unwrapped, err := c.UnwrapKey(t.Context(), "k1", second, params(alg, enc.Result), nil)
					require.NoError(t, err)
					require.Equal(t, []byte("seed"), unwrapped.Result)
					wrapped, err := c.WrapKey(t.Context(), "k1", first, params(alg, []byte("seed")), nil)
					require.NoError(t, err)
					require.Len(t, wrapped.Result, 256)
				}
				require.Equal(t, map[string]int{
					"challenge": 1, "discovery": 1, "openid": 1, "token": 1, "get": 1, "encrypt": 3, "decrypt": 3, "wrapkey": 3, "unwrapkey": 3,
				}, srv.Calls())
				require.Equal(t, 3, srv.Count(vault.Match{Op: vault.OpDecrypt, Host: "kvlab", Key: "k1", Version: second, Status: 200}))
				require.Equal(t, 1, srv.TokensIssued())
				require.Empty(t, srv.Refused())
				require.Equal(t, 1, srv.ConnectionsTo("kvlab"))
			})
		}
	}
}
