package keyvault_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// refuse answers 401 to the tokens that it names.
func refuse(w *web, tokens ...string) func(request) (*http.Response, error) {
	return func(r request) (*http.Response, error) {
		if slices.Contains(tokens, r.token) {
			resp := vaultError(r, 401, "Unauthorized", "", "AKV10022: Invalid audience CANARY")
			resp.Header.Set("WWW-Authenticate", w.challenge)
			return resp, nil
		}
		return nil, nil
	}
}

func TestAuth_RefusedTokenIsReplacedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{}
		w.answer = refuse(w, "t1")
		c, seen := newClient(t, w, b)
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err)
		require.Equal(t, 2, b.fetched())
		require.Equal(t, 2, w.calls("decrypt"))
		require.Equal(t, []keyvault.Reason{keyvault.CredentialsRefused, keyvault.Success},
			[]keyvault.Reason{seen.calls[0].Reason, seen.calls[1].Reason})
		require.Len(t, seen.outcomes, 1)
		require.Nil(t, seen.outcomes[0].Err)
	})
}

func TestAuth_VaultThatRefusesEveryToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{}
		var refused sync.Map
		w.answer = func(r request) (*http.Response, error) {
			refused.Store(r.token, true)
			return refuse(w, r.token)(r)
		}
		c, _ := newClient(t, w, b)
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		e := failure(t, err)
		require.Equal(t, keyvault.CredentialsRefused, e.Reason)
		require.Equal(t, 401, e.Status)
		require.Contains(t, e.Text, "AKV10022")
		require.Contains(t, e.Text, "wants one for https://vault.azure.net, the token was fetched for https://vault.azure.net")
		require.NotContains(t, e.Text, "CANARY")
		require.NotContains(t, e.Text, "t2")

		// Asked 80 times a second for a minute, neither the vault nor the
		// sign-in host is hammered.
		for range 80 * 60 {
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			require.Equal(t, keyvault.CredentialsRefused, failure(t, err).Reason)
			time.Sleep(time.Second / 80)
		}
		require.LessOrEqual(t, b.fetched(), 10)
		require.LessOrEqual(t, w.calls(""), 75)

		// It heals by itself.
		w.answer = nil
		time.Sleep(time.Second)
		_, err = c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err)
	})
}

func TestAuth_ChangedChallengeIsFollowed(t *testing.T) {
	w, b := newWeb(), &bank{}
	c, _ := newClient(t, w, b)
	_, err := c.Decrypt(t.Context(), key1, []byte("block"))
	require.NoError(t, err)
	w.challenge = `Bearer authorization="https://login.microsoftonline.com/99999999-2222-3333-4444-555555555555", resource="https://vault.azure.net"`
	w.answer = refuse(w, "t1")
	_, err = c.Decrypt(t.Context(), key1, []byte("block"))
	require.NoError(t, err)
	require.Equal(t, "99999999-2222-3333-4444-555555555555", b.requests[1].TenantID)
}

func TestAuth_Challenges(t *testing.T) {
	for name, tt := range map[string]struct {
		challenge string
		scope     string // "" is refused
		text      string
	}{
		"comma":         {`Bearer authorization="https://login.microsoftonline.com/11111111-2222-3333-4444-555555555555", resource="https://vault.azure.net"`, "https://vault.azure.net/.default", ""},
		"space":         {`Bearer authorization="https://l/t" resource="https://vault.azure.net"`, "https://vault.azure.net/.default", ""},
		"scope":         {`bearer scope="https://vault.azure.net/.default",resource=https://other.example`, "https://vault.azure.net/.default", ""},
		"slash":         {`Bearer resource="https://vault.azure.net/"`, "https://vault.azure.net/.default", ""},
		"no path":       {`Bearer authorization="https://login.local", resource="https://vault.azure.net"`, "https://vault.azure.net/.default", ""},
		"second header": {`Basic realm="x"`, "", "names no resource"},
		"unrelated":     {`Bearer authorization="https://l/t", resource="https://evil.example"`, "", "not its own domain"},
		"suffix trick":  {`Bearer authorization="https://l/t", resource="https://t.azure.net"`, "", "not its own domain"},
		"itself":        {`Bearer authorization="https://l/t", resource="https://kvlab.vault.azure.net"`, "", "not its own domain"},
		"http":          {`Bearer authorization="https://l/t", resource="http://vault.azure.net"`, "", "not an https URL"},
		"no resource":   {`Bearer authorization="https://l/t"`, "", "names no resource"},
		"open quote":    {`Bearer resource="https://vault.azure.net`, "", "names no resource"},
		"garbage":       {`,,,=,"`, "", "names no resource"},
		"missing":       {"", "", "without a WWW-Authenticate header"},
	} {
		t.Run(name, func(t *testing.T) {
			w, b := newWeb(), &bank{}
			w.challenge = tt.challenge
			c, _ := newClient(t, w, b)
			_, err := c.Decrypt(t.Context(), key1, []byte("block"))
			if tt.scope != "" {
				require.NoError(t, err)
				require.Equal(t, tt.scope, b.requests[0].Scope)
				return
			}
			e := failure(t, err)
			require.Equal(t, keyvault.Unreachable, e.Reason)
			require.Equal(t, keyvault.CauseProxy, e.Cause)
			require.Contains(t, e.Text, tt.text)
			require.Zero(t, b.fetched(), "no token may be requested")
			require.Len(t, w.requests, 1, "no loop")
		})
	}
}

// A thousand calls cost one token, and a dead sign-in host nothing while it lasts.
func TestAuth_TokenIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{}
		c, _ := newClient(t, w, b)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for range 20 {
					_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte{byte(i), 1})
					require.NoError(t, err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, b.fetched())
	})
}

func TestAuth_RefreshIsAheadAndNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{}
		c, _ := newClient(t, w, b)
		decrypt := func() time.Duration {
			start := time.Now()
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			require.NoError(t, err)
			return time.Since(start)
		}
		decrypt()
		// The sign-in host is slow, then refuses for a while.
		b.fetch = func(ctx context.Context, n int) error {
			time.Sleep(5 * time.Second)
			if n < 4 {
				return &keyvault.Error{Reason: keyvault.CredentialsUnavailable, Text: "down"}
			}
			return nil
		}
		for range 75 {
			require.Zero(t, decrypt())
			time.Sleep(time.Minute)
		}
		require.Equal(t, 4, b.fetched())
	})
}

func TestAuth_StuckSignIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{}
		b.fetch = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
		c, seen := newClient(t, w, b)
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				start := time.Now()
				_, err := c.Decrypt(within(t, time.Second), key1, []byte("block"))
				e := failure(t, err)
				require.Less(t, time.Since(start), time.Second)
				require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
				require.Equal(t, keyvault.CauseTimeout, e.Cause)
			})
		}
		wg.Wait()
		require.Equal(t, 1, b.fetched())
		require.Zero(t, w.calls(""))
		require.Len(t, seen.outcomes, 6)
		time.Sleep(10 * time.Second) // the request's own end
	})
}

// One caller's leaving must not end the token request that others wait for.
func TestAuth_FirstCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := newWeb(), &bank{}
		b.fetch = func(ctx context.Context, _ int) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		c, seen := newClient(t, w, b)
		first, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := c.Decrypt(first, key1, []byte("block"))
			require.Equal(t, keyvault.Canceled, failure(t, err).Reason)
		})
		synctest.Wait()
		for i := range 50 {
			wg.Go(func() {
				_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte{byte(i), 1})
				require.NoError(t, err)
			})
		}
		time.Sleep(100 * time.Millisecond)
		cancel()
		wg.Wait()
		require.Equal(t, 1, b.fetched())
		require.Len(t, seen.outcomes, 50)
	})
}

func TestAuth_FailedSignInIsNotRepeatedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, reason := range []keyvault.Reason{keyvault.CredentialsRefused, keyvault.CredentialsUnavailable} {
			w, b := newWeb(), &bank{}
			b.fetch = func(context.Context, int) error { return &keyvault.Error{Reason: reason, Text: "no"} }
			c, _ := newClient(t, w, b)
			for range 600 {
				_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
				require.Equal(t, reason, failure(t, err).Reason)
				time.Sleep(100 * time.Millisecond)
			}
			if reason == keyvault.CredentialsRefused {
				require.LessOrEqual(t, b.fetched(), 6)
			} else {
				require.LessOrEqual(t, b.fetched(), 16)
			}
			b.fetch = nil
			time.Sleep(31 * time.Second)
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			require.NoError(t, err)
		}
	})
}

func TestAuth_SourcesThatMisbehave(t *testing.T) {
	for name, fetch := range map[string]func(context.Context, int) error{
		"plain error": func(context.Context, int) error { return errors.New("TOKENCANARY") },
		"panic":       func(context.Context, int) error { panic("TOKENCANARY") },
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newClient(t, newWeb(), &bank{fetch: fetch})
			_, err := c.Decrypt(t.Context(), key1, []byte("block"))
			e := failure(t, err)
			require.Equal(t, keyvault.CredentialsUnavailable, e.Reason)
			require.NotContains(t, e.Error(), "CANARY")
		})
	}
	c, _ := newClient(t, newWeb(), &bank{life: -time.Hour})
	_, err := c.Decrypt(t.Context(), key1, []byte("block"))
	require.Contains(t, failure(t, err).Text, "clock")
}

// A page link leads nowhere else with our token.
func TestAuth_PageLinksStayHome(t *testing.T) {
	for _, link := range []string{"https://other.vault.azure.net", "http://kvlab.vault.azure.net", "https://kvlab.vault.azure.net:43"} {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) {
			return reply(r.http, 200, `{"value":[],"nextLink":"`+link+`/keys/k1/versions?page=2"}`), nil
		}
		c, _ := newClient(t, w, &bank{})
		_, err := c.Versions(t.Context(), key1)
		require.Contains(t, failure(t, err).Text, "another host")
		for _, r := range w.requests {
			require.Equal(t, "https://kvlab.vault.azure.net", r.http.URL.Scheme+"://"+r.http.URL.Host)
		}
	}
}

// The service writes the port into its links.
func TestAuth_PageLinksAreFollowed(t *testing.T) {
	w := newWeb()
	w.answer = func(r request) (*http.Response, error) {
		next := `"https://kvlab.vault.azure.net:443/keys/k1/versions?page=2"`
		if r.n > 1 {
			next = "null"
		}
		return reply(r.http, 200, fmt.Sprintf(`{"value":[{"kid":"https://kvlab.vault.azure.net/keys/k1/%s","attributes":{"enabled":false}}, null, {"kid":"x"}],"nextLink":%s}`, versionID(r.n), next)), nil
	}
	c, _ := newClient(t, w, &bank{})
	all, err := c.Versions(t.Context(), key1)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.False(t, all[0].Enabled)
	require.Equal(t, versionID(2), all[1].Key.Version)
}
