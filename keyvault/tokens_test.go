package keyvault_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/stretchr/testify/require"
)

// A token that outlives the skew but not the pause after its fetch: no request
// goes out with none in its place.
func TestTokens_ShortLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{life: 10400 * time.Millisecond}
		c, _ := newClient(t, w, b)
		good := 0
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			if err == nil {
				good++
				continue
			}
			e := failure(t, err)
			require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
			require.Contains(t, e.Text, "clock")
		}
		require.NotZero(t, good)
		require.Equal(t, len(w.requests)-1, w.calls(""), "all but the first have a token")
		require.LessOrEqual(t, b.fetched(), 11)
	})
}

// garbled gives out one token for ever, until it is mended.
type garbled struct {
	bank
	token string
	given int
}

func (g *garbled) Token(ctx context.Context, req keyvault.TokenRequest) (azcore.AccessToken, error) {
	if g.token == "" {
		return g.bank.Token(ctx, req)
	}
	g.given++
	return azcore.AccessToken{Token: g.token, ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func TestTokens_NotForAHeader(t *testing.T) {
	for _, token := range []string{"CANARY\nb", "CANARY\x00", "CANARY b", "CANARY\xff", "CANARYé"} {
		synctest.Test(t, func(t *testing.T) {
			w, b := newWeb(), &garbled{token: token}
			c, _ := newClient(t, w, b)
			last := hammer(t, c, key1, time.Minute)
			require.Equal(t, keyvault.CredentialsUnavailable, last.Reason)
			require.Contains(t, last.Text, "characters that no HTTP header can hold")
			require.NotContains(t, last.Error(), "CANARY")
			require.LessOrEqual(t, b.given, 16)
			require.Zero(t, w.calls(""))
			b.token = ""
			time.Sleep(6 * time.Second)
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			require.NoError(t, err)
		})
	}
}

// A dated bank wants its tokens renewed some time after they came.
type dated struct {
	bank
	after time.Duration
}

func (d *dated) Token(ctx context.Context, req keyvault.TokenRequest) (azcore.AccessToken, error) {
	tk, err := d.bank.Token(ctx, req)
	tk.RefreshOn = time.Now().Add(d.after)
	return tk, err
}

// Case A01, in general: the sign-in host may ask for an earlier renewal, but not for
// one with every call.
func TestTokens_RefreshOn(t *testing.T) {
	for after, fetched := range map[time.Duration]int{-time.Minute: 1, 0: 1, time.Second: 1, 20 * time.Minute: 3, 2 * time.Hour: 1} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &dated{after: after}
				c, _ := newClient(t, newWeb(), b)
				for range 50 * 60 {
					_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
					require.NoError(t, err)
					time.Sleep(time.Second)
				}
				require.Equal(t, fetched, b.fetched())
			})
		})
	}
}

// What vaults name does not fill the memory.
func TestTokens_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{}
		w.answer = func(r request) (*http.Response, error) { return refuse(w, r.token)(r) }
		c, _ := newClient(t, w, b)
		for i := range 500 {
			w.challenge = fmt.Sprintf(`Bearer authorization="https://login.microsoftonline.com/%s", resource="https://vault.azure.net/%d"`, testTenant, i)
			_, err := c.Decrypt(keyvault.Background(t.Context()), key1, []byte("block"))
			require.Error(t, err)
		}
		require.LessOrEqual(t, keyvault.Audiences(c), 65)
		w.answer = nil
		_, err := c.Decrypt(keyvault.Background(t.Context()), key1, []byte("block"))
		require.NoError(t, err)
	})
}
