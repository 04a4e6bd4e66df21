package keyvault_test

import (
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// failFor answers with a server error, or not at all, for some versions.
func failFor(hang bool, versions ...string) func(request) (*http.Response, error) {
	return func(r request) (*http.Response, error) {
		for _, v := range versions {
			switch {
			case r.version != v:
			case hang:
				return nil, wait(r, time.Hour)
			default:
				return vaultError(r, 500, "InternalServerError", "", ""), nil
			}
		}
		return nil, nil
	}
}

// However much is asked of versions that the vault fails on, others work, and
// the vault is asked for each bad one once a second.
func TestBreaker_BadVersionsLeaveTheOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		hang bool
		bad  []string
	}{
		"one fails":  {false, []string{v2}},
		"one hangs":  {true, []string{v2}},
		"two fail":   {false, []string{v2, versionID(7)}},
		"two hang":   {true, []string{v2, versionID(7)}},
		"three fail": {false, []string{v2, versionID(7), versionID(8)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWeb()
				w.answer = failFor(tt.hang, tt.bad...)
				c, _ := newClient(t, w, &bank{})
				_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
				require.NoError(t, err)
				var wg sync.WaitGroup
				for _, v := range tt.bad {
					for range 4 {
						wg.Go(func() {
							for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
								_, err := c.Decrypt(within(t, 3*time.Second), key1.WithVersion(v), []byte("block"))
								require.Error(t, err)
							}
						})
					}
				}
				good := 0
				for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Second) {
					_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
					require.NoError(t, err)
					_, err = c.Encrypt(within(t, 3*time.Second), key1, []byte("seed"))
					require.NoError(t, err)
					good++
				}
				wg.Wait()
				require.LessOrEqual(t, w.calls("decrypt"), 1+good+len(tt.bad)*(24+10))

				// Those heal within a second too, though others stay bad. One call may
				// still be hanging.
				if tt.hang {
					time.Sleep(3 * time.Second)
				}
				w.change(failFor(tt.hang, tt.bad[1:]...))
				time.Sleep(1100 * time.Millisecond)
				_, err = c.Decrypt(within(t, 3*time.Second), key1.WithVersion(tt.bad[0]), []byte("block"))
				if tt.hang {
					require.True(t, failure(t, err).Remembered, "who asks after a silence does not wait for its end")
					synctest.Wait()
					_, err = c.Decrypt(within(t, 3*time.Second), key1.WithVersion(tt.bad[0]), []byte("block"))
				}
				require.NoError(t, err)
				// Calls that nobody waits for end as others do.
				time.Sleep(3 * time.Second)
			})
		})
	}
}

// Faults on two keys are the host's: the next ones fail at once.
func TestBreaker_ServerFaultsOfSeveralKeysAreTheHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = always(500, "InternalServerError", "", "")
		c, _ := newClient(t, w, &bank{})
		keys := []keyvault.Ref{key1, key1.WithVersion(v2)}
		for i := range 3 {
			_, err := c.Decrypt(within(t, 3*time.Second), keys[i%2], []byte("block"))
			require.False(t, failure(t, err).Remembered)
		}
		for _, k := range keys {
			_, err := c.Decrypt(within(t, 3*time.Second), k, []byte("block"))
			require.True(t, failure(t, err).Remembered)
		}
		before := w.calls("")
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Second / 80) {
			for _, k := range keys {
				_, err := c.Decrypt(within(t, 3*time.Second), k, []byte("block"))
				require.Error(t, err)
			}
		}
		require.LessOrEqual(t, w.calls("")-before, 2*(20+4))
	})
}

// A connection that cannot be made is the host's from the first key on.
func TestBreaker_ConnectionFaultsAreTheHosts(t *testing.T) {
	for name, fault := range map[string]error{
		"refused":  &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
		"dropped":  &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ETIMEDOUT},
		"resolver": &net.DNSError{Name: "kvlab.vault.azure.net", IsTimeout: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWeb()
				w.answer = func(request) (*http.Response, error) { return nil, fault }
				c, _ := newClient(t, w, &bank{})
				for range 3 {
					_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
					require.False(t, failure(t, err).Remembered)
				}
				_, err := c.Decrypt(within(t, 3*time.Second), key1.WithVersion(v2), []byte("block"))
				require.True(t, failure(t, err).Remembered)
			})
		})
	}
}

// One odd answer is no reason to ask no more; three in a row are.
func TestBreaker_OneOddAnswerDoesNotOpen(t *testing.T) {
	odd := map[string]func(r request) *http.Response{
		"page":       func(r request) *http.Response { return reply(r.http, 200, "<html>") },
		"not found":  func(r request) *http.Response { return reply(r.http, 404, "<html>") },
		"no content": func(r request) *http.Response { return reply(r.http, 204, "") },
		"redirect":   func(r request) *http.Response { return reply(r.http, 307, "") },
		"conflict":   func(r request) *http.Response { return vaultError(r, 409, "Conflict", "Odd", "") },
	}
	for name, answer := range odd {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWeb()
				c, _ := newClient(t, w, &bank{})
				for _, n := range []int{1, 2, 3} {
					w.answer = func(r request) (*http.Response, error) { return answer(r), nil }
					for range n {
						_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
						e := failure(t, err)
						require.Equal(t, keyvault.Unknown, e.Reason)
						require.False(t, e.Remembered)
					}
					w.answer = nil
					_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
					if n < 3 {
						require.NoError(t, err)
					} else {
						require.True(t, failure(t, err).Remembered)
					}
				}
			})
		})
	}
}
