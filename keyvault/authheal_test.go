package keyvault_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"github.com/stretchr/testify/require"
)

const (
	otherTenant   = `Bearer authorization="https://login.microsoftonline.com/99999999-2222-3333-4444-555555555555", resource="https://vault.azure.net"`
	otherAudience = `Bearer authorization="https://login.microsoftonline.com/11111111-2222-3333-4444-555555555555", resource="https://azure.net"`
)

// A pickyBank refuses all tokens but those of the vault's own tenant and audience.
type pickyBank struct{ bank }

func (b *pickyBank) Token(ctx context.Context, req keyvault.TokenRequest) (azcore.AccessToken, error) {
	if strings.HasPrefix(req.TenantID, "9999") || req.Scope != "https://vault.azure.net/.default" {
		return azcore.AccessToken{}, &keyvault.Error{Reason: keyvault.CredentialsRefused, Text: "not for this one"}
	}
	return b.bank.Token(ctx, req)
}

// One wrong 401 is forgotten once the vault says the right thing again.
func TestAuth_WrongChallengeHeals(t *testing.T) {
	for name, wrong := range map[string]string{"tenant": otherTenant, "audience": otherAudience} {
		for _, first := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, b := newWeb(), &pickyBank{}
					right := w.challenge
					c, _ := newClient(t, w, b)
					if !first {
						_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
						require.NoError(t, err)
						w.answer = func(r request) (*http.Response, error) { return refuse(w, r.token)(r) }
					}
					w.challenge = wrong
					last := hammer(t, c, key1, time.Minute)
					require.Equal(t, keyvault.CredentialsRefused, last.Reason)
					require.LessOrEqual(t, len(w.requests), 2*63, "a failing vault is asked at the usual pace")

					w.challenge, w.answer = right, nil
					start := time.Now()
					for {
						if _, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block")); err == nil {
							break
						}
						require.Less(t, time.Since(start), 3*time.Second)
						time.Sleep(100 * time.Millisecond)
					}
				})
			})
		}
	}
}

// A vault that refuses the token without saying which one it wants gets a new
// one of the same kind.
func TestAuth_RefusalWithoutChallengeRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{}
		w.answer = func(r request) (*http.Response, error) {
			if r.token == "t1" {
				return vaultError(r, 401, "Unauthorized", "", ""), nil
			}
			return nil, nil
		}
		c, _ := newClient(t, w, b)
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err)
		require.Equal(t, 2, b.fetched())
	})
}

// The transport may read a request for some time after the call has returned.
func TestAuth_SentRequestIsLeftAlone(t *testing.T) {
	w := newWeb()
	w.answer = refuse(w, "t1")
	c, _ := newClient(t, w, &bank{})
	_, err := c.Decrypt(t.Context(), key1, []byte("block"))
	require.NoError(t, err)
	require.Len(t, w.requests, 3)
	for _, r := range w.requests[1:] {
		require.Equal(t, "Bearer "+r.token, r.http.Header.Get("Authorization"))
		require.Equal(t, w.requests[1].body, r.body)
		require.NotEmpty(t, r.body)
	}
}

// Calls that are cancelled in the midst of an HTTP/2 exchange send no request
// without a token, and race with nothing.
func TestAuth_CancelledOverHTTP2(t *testing.T) {
	l := newLab(t, vault.Config{HTTP2: true})
	block, err := l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
	require.NoError(t, err)
	end := time.Now().Add(time.Second)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for time.Now().Before(end) {
				ctx, cancel := context.WithCancel(t.Context())
				stop := time.AfterFunc(rand.N(6*time.Millisecond), cancel)
				_, _ = l.c.Decrypt(ctx, l.ref, block)
				stop.Stop()
				cancel()
			}
		})
	}
	wg.Wait()
	// The emulator still works off what was cancelled.
	plain, err := l.c.Decrypt(within(t, time.Minute), l.ref, block)
	require.NoError(t, err)
	require.Equal(t, []byte("seed"), plain)
	require.Equal(t, 1, l.srv.Calls()["challenge"])
	require.Equal(t, 1, l.srv.TokensIssued())
}
