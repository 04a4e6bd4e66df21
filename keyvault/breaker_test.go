package keyvault_test

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// hammer decrypts at the pace at which kube-apiserver repeats a failing one, and
// checks that what the breaker answers comes at once.
func hammer(t *testing.T, c *keyvault.Client, ref keyvault.Ref, d time.Duration) (last *keyvault.Error) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second / 80) {
		start := time.Now()
		_, err := c.Decrypt(within(t, 3*time.Second), ref, []byte("block"))
		last = nil
		if err != nil {
			last = failure(t, err)
			if last.Remembered {
				require.Zero(t, time.Since(start))
			}
		}
	}
	return last
}

func TestBreaker_OneCallASecond(t *testing.T) {
	for name, answer := range map[string]func(request) (*http.Response, error){
		"server":   always(500, "InternalServerError", "", ""),
		"disabled": always(403, "Forbidden", "KeyDisabled", ""),
		"denied":   always(403, "Forbidden", "ForbiddenByRbac", ""),
		"gone":     always(404, "KeyNotFound", "", ""),
		"firewall": always(403, "Forbidden", "ForbiddenByFirewall", ""),
		"page":     func(r request) (*http.Response, error) { return reply(r.http, 200, "<html>"), nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWeb()
				w.answer = answer
				c, seen := newClient(t, w, &bank{})
				last := hammer(t, c, key1, 20*time.Second)
				require.True(t, last.Remembered)
				require.LessOrEqual(t, w.calls(""), 20+6, "three faults of two tries, then one a second")
				require.GreaterOrEqual(t, w.calls(""), 15)
				for _, o := range seen.outcomes {
					require.False(t, o.Err.Remembered)
				}

				w.answer = nil
				require.Nil(t, hammer(t, c, key1, 1100*time.Millisecond), "it heals within a second")
			})
		})
	}
}

// While a vault hangs, nobody who repeats a failing Decrypt waits for
// it: the one call a second goes on by itself.
func TestBreaker_NobodyWaitsForASlowTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) { return nil, wait(r, time.Hour) }
		c, _ := newClient(t, w, &bank{})
		hammer(t, c, key1, 15*time.Second) // until it is known to be slow
		before := w.calls("")
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Second / 80) {
			start := time.Now()
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			require.True(t, failure(t, err).Remembered)
			require.Less(t, time.Since(start), 5*time.Millisecond)
		}
		require.LessOrEqual(t, w.calls("")-before, 21)
		require.GreaterOrEqual(t, w.calls("")-before, 4, "it is still asked")

		// An Encrypt is asked for once, so it waits.
		w.change(nil)
		time.Sleep(5 * time.Second)
		_, err := c.Encrypt(within(t, 3*time.Second), key1, []byte("seed"))
		require.NoError(t, err)
		// The first Decrypt may be told what was; those after it are not.
		if _, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block")); err != nil {
			require.True(t, failure(t, err).Remembered)
		}
		synctest.Wait()
		_, err = c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err)
	})
}

func TestBreaker_OneStrayFaultDoesNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = always(500, "InternalServerError", "", "")
		c, _ := newClient(t, w, &bank{})
		for range 5 {
			for range 2 {
				_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
				require.False(t, failure(t, err).Remembered)
			}
			w.answer = nil
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			require.NoError(t, err)
			w.answer = always(500, "InternalServerError", "", "")
		}
	})
}

func TestBreaker_RetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) {
			resp := vaultError(r, 429, "Throttled", "", "")
			resp.Header.Set("Retry-After", "30")
			return resp, nil
		}
		c, _ := newClient(t, w, &bank{})
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		e := failure(t, err)
		require.Equal(t, keyvault.Throttled, e.Reason)
		require.Equal(t, 30*time.Second, e.RetryAfter)
		require.Contains(t, e.Text, "pause of 30s")
		w.answer = nil
		last := hammer(t, c, key1, 29*time.Second)
		require.Equal(t, keyvault.Throttled, last.Reason)
		_, err = c.Get(keyvault.Background(t.Context()), key1)
		require.Equal(t, keyvault.Throttled, failure(t, err).Reason, "a probe keeps the pause too")
		require.Equal(t, 1, w.calls(""))
		time.Sleep(time.Second)
		_, err = c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err)
	})
}

// A call that began before the pause and ends well does not cut it short.
func TestBreaker_LateSuccessKeepsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) {
			if r.op == "encrypt" {
				return nil, wait(r, time.Second)
			}
			resp := vaultError(r, 429, "Throttled", "", "")
			resp.Header.Set("Retry-After", "30")
			return resp, nil
		}
		c, _ := newClient(t, w, &bank{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := c.Encrypt(within(t, 3*time.Second), key1, []byte("seed"))
			require.NoError(t, err)
		})
		synctest.Wait()
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.Error(t, err)
		wg.Wait()
		_, err = c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.True(t, failure(t, err).Remembered)
	})
}

func TestBreaker_RetryAfterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) {
			resp := vaultError(r, 429, "Throttled", "", "")
			resp.Header.Set("Retry-After", "86400")
			return resp, nil
		}
		c, _ := newClient(t, w, &bank{})
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.Error(t, err)
		w.answer = nil
		time.Sleep(61 * time.Second)
		_, err = c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err)
	})
}

func TestBreaker_ThrottlingWithoutRetryAfterDoubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = always(429, "Throttled", "", "")
		c, _ := newClient(t, w, &bank{})
		hammer(t, c, key1, 2*time.Minute)
		// 6 until it opens, then after 1, 2, 4, 8, 16, 16 … seconds.
		require.LessOrEqual(t, w.calls(""), 18)
		require.GreaterOrEqual(t, w.calls(""), 12)
	})
}

// Neither a disabled old version nor a missing permission blocks what works.
func TestBreaker_KeysAndOperationsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		old := key1.WithVersion(v2)
		w.answer = func(r request) (*http.Response, error) {
			switch {
			case r.op == "get":
				return vaultError(r, 403, "Forbidden", "ForbiddenByPolicy", ""), nil
			case r.version == v2:
				return vaultError(r, 403, "Forbidden", "KeyDisabled", ""), nil
			}
			return nil, nil
		}
		c, _ := newClient(t, w, &bank{})
		for range 10 {
			_, err := c.Get(within(t, 3*time.Second), key1)
			require.Equal(t, keyvault.AccessDenied, failure(t, err).Reason)
			_, err = c.Decrypt(within(t, 3*time.Second), old, []byte("block"))
			require.Equal(t, keyvault.KeyDisabled, failure(t, err).Reason)
			_, err = c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			require.NoError(t, err)
		}
		require.Equal(t, 1, w.calls("get"))
		require.Equal(t, 11, w.calls("decrypt"))
	})
}

func TestBreaker_BadCiphertextOpensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = always(400, "BadParameter", "", "")
		c, _ := newClient(t, w, &bank{})
		for range 20 {
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			e := failure(t, err)
			require.Equal(t, keyvault.BadCiphertext, e.Reason)
			require.False(t, e.Remembered)
		}
		require.Equal(t, 20, w.calls(""), "and it is not retried")
	})
}

func TestBreaker_BackgroundPassesAndHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = always(403, "Forbidden", "KeyDisabled", "")
		c, _ := newClient(t, w, &bank{})
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.Error(t, err)
		w.answer = nil
		_, err = c.Decrypt(keyvault.Background(t.Context()), key1, []byte("block"))
		require.NoError(t, err)
		_, err = c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err, "the probe's success counts at once")
	})
}
