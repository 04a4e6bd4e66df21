package keyvault_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

func TestClient_RoundTrip(t *testing.T) {
	w := newWeb()
	b := &bank{}
	c, seen := newClient(t, w, b)
	block, err := c.Encrypt(t.Context(), key1, []byte("seed"))
	require.NoError(t, err)
	require.Equal(t, []byte("dees"), block)
	plain, err := c.Decrypt(t.Context(), key1, block)
	require.NoError(t, err)
	require.Equal(t, []byte("seed"), plain)

	// The first request elicits the challenge, so it must be without content.
	require.Len(t, w.requests, 3)
	require.Empty(t, w.requests[0].body)
	require.Equal(t, "t1", w.requests[1].token)
	require.Contains(t, w.requests[1].http.Header.Get("User-Agent"), "test/1 azsdk-go-azkeys")
	require.Equal(t, []keyvault.TokenRequest{{Scope: "https://vault.azure.net/.default", TenantID: "11111111-2222-3333-4444-555555555555"}}, b.requests)
	require.Len(t, seen.calls, 2, "the question for a challenge is no call")
	require.Len(t, seen.outcomes, 2)
}

func TestClient_WrapUsesTheOtherPermissionPair(t *testing.T) {
	w := newWeb()
	c, err := keyvault.NewClient(keyvault.ClientConfig{Credential: &bank{}, Transport: w, Wrap: true})
	require.NoError(t, err)
	block, err := c.Encrypt(t.Context(), key1, []byte("seed"))
	require.NoError(t, err)
	_, err = c.Decrypt(t.Context(), key1, block)
	require.NoError(t, err)
	require.Equal(t, 1, w.calls("wrapkey"))
	require.Equal(t, 1, w.calls("unwrapkey"))
}

func TestClient_Get(t *testing.T) {
	c, _ := newClient(t, newWeb(), &bank{})
	a, err := c.Get(t.Context(), key1)
	require.NoError(t, err)
	require.Equal(t, key1, a.Key)
	require.True(t, a.Enabled)
	require.Equal(t, int64(1900000000), a.Expires.Unix())
	require.Equal(t, "RSA", a.KeyType)
	require.Equal(t, []string{"encrypt", "decrypt"}, a.KeyOps)
}

// For a live key, "not found" among the deleted ones is the good answer.
func TestClient_DeletedIsNoEvidence(t *testing.T) {
	w := newWeb()
	w.answer = func(r request) (*http.Response, error) {
		if r.op == "getdeleted" {
			return vaultError(r, 404, "KeyNotFound", "", "Deleted Key not found: k1"), nil
		}
		return nil, nil
	}
	c, seen := newClient(t, w, &bank{})
	_, err := c.Deleted(t.Context(), key1)
	require.Equal(t, keyvault.KeyNotFound, failure(t, err).Reason)
	require.Empty(t, seen.outcomes)
	require.Equal(t, keyvault.OpGet, seen.calls[0].Op)
	_, err = c.Get(t.Context(), key1.WithVersion(v1))
	require.NoError(t, err, "the breaker of GET is another one")
}

func TestClient_ProxyMode(t *testing.T) {
	w := newWeb()
	var seen []*http.Request
	forward := roundTrip(func(r *http.Request) (*http.Response, error) {
		seen = append(seen, r)
		in := r.Clone(r.Context())
		in.URL.Path = strings.TrimPrefix(r.URL.Path, "/kvlab.vault.azure.net")
		return w.RoundTrip(in)
	})
	c, err := keyvault.NewClient(keyvault.ClientConfig{Credential: &bank{}, Transport: forward, Proxy: &keyvault.ProxyMode{Address: "127.0.0.1", Port: 7788}})
	require.NoError(t, err)
	_, err = c.Encrypt(t.Context(), key1, []byte("seed"))
	require.NoError(t, err)
	require.Len(t, seen, 2)
	for _, r := range seen {
		require.Equal(t, "http://127.0.0.1:7788/kvlab.vault.azure.net/keys/k1/"+v1+"/encrypt", r.URL.Scheme+"://"+r.URL.Host+r.URL.Path)
		require.Equal(t, "KeyVault", r.Header.Get("x-azure-proxy-target"))
	}
	_, err = keyvault.NewClient(keyvault.ClientConfig{Credential: &bank{}, Proxy: &keyvault.ProxyMode{Address: "127.0.0.1"}})
	require.ErrorContains(t, err, "port")
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestClient_RefusesWhatIsNoKey(t *testing.T) {
	w := newWeb()
	c, _ := newClient(t, w, &bank{})
	for _, ref := range []keyvault.Ref{
		{Host: "kvlab.vault.azure.net", Name: "../secrets/s1", Version: v1},
		{Host: "kvlab.vault.azure.net", Name: "k1"},
		{Host: "kvlab.vault.azure.net", Name: "k1", Version: "../x"},
		{Host: "evil/host", Name: "k1", Version: v1},
	} {
		_, err := c.Decrypt(t.Context(), ref, []byte("block"))
		require.Equal(t, keyvault.BadRequest, failure(t, err).Reason)
	}
	for _, block := range [][]byte{nil, {}, make([]byte, 1<<20)} {
		_, err := c.Decrypt(t.Context(), key1, block)
		require.Equal(t, keyvault.BadRequest, failure(t, err).Reason)
	}
	require.Empty(t, w.requests)
}

// Case K07: one failure that says "later" is survived, by exactly one more call.
func TestClient_SurvivesOneFault(t *testing.T) {
	for _, status := range []int{500, 502, 503, 504, 408, 429, 0} {
		synctest.Test(t, func(t *testing.T) {
			w := newWeb()
			w.answer = func(r request) (*http.Response, error) {
				switch {
				case r.n > 1:
					return nil, nil
				case status == 0:
					return nil, syscall.ECONNRESET
				}
				return vaultError(r, status, "X", "", ""), nil
			}
			c, seen := newClient(t, w, &bank{})
			got, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("dees"))
			require.NoError(t, err, status)
			require.Equal(t, []byte("seed"), got)
			require.Equal(t, 2, w.calls("decrypt"))
			require.Len(t, seen.calls, 2)
			require.Len(t, seen.outcomes, 1)
			require.Nil(t, seen.outcomes[0].Err)
		})
	}
}

// Case K07: a lasting fault ends long before the deadline, in its own words.
func TestClient_LastingFaultKeepsItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = always(503, "ServiceUnavailable", "", "")
		c, _ := newClient(t, w, &bank{})
		start := time.Now()
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		e := failure(t, err)
		require.Equal(t, keyvault.Unreachable, e.Reason)
		require.Equal(t, keyvault.CauseServer, e.Cause)
		require.Less(t, time.Since(start), time.Second)
		require.Equal(t, 2, w.calls(""))

		// A background call tries once more.
		_, err = c.Get(keyvault.Background(t.Context()), key1)
		require.Error(t, err)
		require.Equal(t, 3, w.calls("get"))
	})
}

// A retry that would be cut short by the deadline hides the cause.
func TestClient_NoRetryThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) {
			if err := wait(r, 2850*time.Millisecond); err != nil {
				return nil, err
			}
			return vaultError(r, 503, "ServiceUnavailable", "", ""), nil
		}
		c, _ := newClient(t, w, &bank{})
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		e := failure(t, err)
		require.Equal(t, keyvault.CauseServer, e.Cause)
		require.Equal(t, 1, w.calls(""))
	})
}

// Case K10: an answer that is slow is waited for, one that is too slow is told so
// in time.
func TestClient_SlowAnswers(t *testing.T) {
	for _, tt := range []struct {
		delay time.Duration
		ok    bool
	}{{2900 * time.Millisecond, true}, {3500 * time.Millisecond, false}, {time.Minute, false}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWeb()
			cancelled := 0
			w.answer = func(r request) (*http.Response, error) {
				err := wait(r, tt.delay)
				if err != nil {
					cancelled++
				}
				return nil, err
			}
			c, seen := newClient(t, w, &bank{})
			start := time.Now()
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			require.Less(t, time.Since(start), 3*time.Second)
			if tt.ok {
				require.NoError(t, err)
				return
			}
			e := failure(t, err)
			require.Equal(t, keyvault.Unreachable, e.Reason)
			require.Equal(t, keyvault.CauseTimeout, e.Cause)
			require.Contains(t, e.Text, "no answer from kvlab.vault.azure.net within 2.9 s")
			require.Equal(t, 1, cancelled, "the vault saw the request cancelled")
			require.Len(t, seen.outcomes, 1)
		})
	}
}

func TestClient_TimeoutTellsTheTryBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) {
			if r.n == 1 {
				return vaultError(r, 503, "ServiceUnavailable", "", ""), nil
			}
			return nil, wait(r, time.Minute)
		}
		c, _ := newClient(t, w, &bank{})
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.Contains(t, failure(t, err).Text, "the try before ended with http 503")
	})
}

// The caller's own leaving says nothing about the vault.
func TestClient_CallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) { return nil, wait(r, time.Minute) }
		c, seen := newClient(t, w, &bank{})
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			_, err := c.Decrypt(ctx, key1, []byte("block"))
			require.Equal(t, keyvault.Canceled, failure(t, err).Reason)
		}
		require.Equal(t, 5, w.calls("decrypt"), "the breaker did not open")
		require.Empty(t, seen.outcomes)
	})
}

func TestClient_BoundsTheCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) { return nil, wait(r, 40*time.Millisecond) }
		c, _ := newClient(t, w, &bank{})
		_, err := c.Get(t.Context(), key1) // a token
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte{byte(i), byte(i >> 8)})
				require.NoError(t, err)
			})
		}
		time.Sleep(10 * time.Millisecond)
		start := time.Now()
		_, err = c.Get(keyvault.Background(t.Context()), key1)
		require.NoError(t, err)
		require.Equal(t, 40*time.Millisecond, time.Since(start), "a probe does not queue")
		wg.Wait()
		require.LessOrEqual(t, w.maxOpen, 65)
	})
}

func TestClient_QueueEndsInWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) {
			if r.op == "get" {
				return nil, nil
			}
			return nil, wait(r, time.Minute)
		}
		c, seen := newClient(t, w, &bank{})
		_, err := c.Get(t.Context(), key1)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() { _, _ = c.Decrypt(within(t, 8*time.Second), key1, []byte{byte(i)}) })
		}
		synctest.Wait()
		_, err = c.Decrypt(within(t, time.Second), key1, []byte("late"))
		e := failure(t, err)
		require.Equal(t, keyvault.Unreachable, e.Reason)
		require.Contains(t, e.Text, "64 calls are in flight")
		require.Equal(t, 1, seen.ended(), "it never reached for the vault")
		wg.Wait()
	})
}

func TestClient_SurvivesPanics(t *testing.T) {
	w := newWeb()
	w.answer = func(request) (*http.Response, error) { panic("PLAINCANARY") }
	c, _ := newClient(t, w, &bank{})
	_, err := c.Decrypt(t.Context(), key1, []byte("block"))
	e := failure(t, err)
	require.Equal(t, keyvault.Unknown, e.Reason)
	require.NotContains(t, e.Error(), "CANARY")
}
