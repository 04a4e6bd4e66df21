package keyvault_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// A safe is a vault in memory whose encryption is a reversal.
type safe struct {
	mu       sync.Mutex
	calls    []string
	versions map[string][]string // by key name
	err      map[string]error    // by operation
	delay    time.Duration
	decrypt  func(ctx context.Context, ref keyvault.Ref) error
	given    [][]byte // what Decrypt has returned
}

func (s *safe) enter(op string, ref keyvault.Ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, op+" "+ref.Name+"/"+ref.Version)
	return s.err[op]
}

func (s *safe) count(op string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if strings.HasPrefix(c, op) {
			n++
		}
	}
	return n
}

func (s *safe) Encrypt(_ context.Context, ref keyvault.Ref, plaintext []byte) ([]byte, error) {
	return reversed(plaintext), s.enter("encrypt", ref)
}

func (s *safe) Decrypt(ctx context.Context, ref keyvault.Ref, block []byte) ([]byte, error) {
	err := s.enter("decrypt", ref)
	if s.decrypt != nil {
		err = s.decrypt(ctx, ref)
	}
	time.Sleep(s.delay)
	if err != nil {
		return nil, err
	}
	plain := reversed(block)
	s.mu.Lock()
	s.given = append(s.given, plain)
	s.mu.Unlock()
	return plain, nil
}

func (s *safe) Versions(_ context.Context, ref keyvault.Ref) (out []keyvault.Attributes, err error) {
	for _, v := range s.versions[ref.Name] {
		out = append(out, keyvault.Attributes{Key: ref.WithVersion(v)})
	}
	return out, s.enter("list", ref)
}

func pinned(t *testing.T, s *safe, others ...keyvault.Ref) *keyvault.Keyring {
	t.Helper()
	k, err := keyvault.NewPinned(keyvault.KeyringConfig{Vault: s, Write: key1, Others: others})
	require.NoError(t, err)
	return k
}

func TestNewPinned_ReportsAllFaults(t *testing.T) {
	_, err := keyvault.NewPinned(keyvault.KeyringConfig{Write: key1.WithVersion(""), Others: []keyvault.Ref{{Host: "x"}}})
	require.ErrorContains(t, err, "a vault is required")
	require.ErrorContains(t, err, "has no version")
	require.ErrorContains(t, err, "is not the host name of a vault")
}

func TestKeyring_Encrypt(t *testing.T) {
	s := &safe{}
	k := pinned(t, s)
	sum := sha256.Sum256([]byte("https://kvlab.vault.azure.net/keys/k1/" + v1))
	require.Equal(t, hex.EncodeToString(sum[:]), k.KeyID(""))
	require.Equal(t, key1, k.WriteKey())
	block, ref, err := k.Encrypt(t.Context(), k.KeyID(""), []byte("seed"))
	require.NoError(t, err)
	require.Equal(t, []byte("dees"), block)
	require.Equal(t, key1, ref)

	_, _, err = k.Encrypt(t.Context(), key1.WithVersion(v2).KeyID(), []byte("seed"))
	require.Equal(t, keyvault.UnknownKey, failure(t, err).Reason)
	require.Equal(t, 1, s.count(""))
}

// Every way in which a key ID leads to a version, and what each costs.
func TestKeyring_DecryptFindsTheVersion(t *testing.T) {
	mixed := keyvault.Ref{Host: "KvLab.vault.azure.net", Name: "k1", Version: v1}
	other := keyvault.Ref{Host: "second.vault.azure.net", Name: "k9"}
	s := &safe{versions: map[string][]string{"k1": {v1, v2}, "k9": {v2}}}
	k, err := keyvault.NewPinned(keyvault.KeyringConfig{Vault: s, Write: mixed, Others: []keyvault.Ref{other, other.WithVersion(v1)}})
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		id, hint string
		want     keyvault.Ref
	}{
		"write":                {mixed.KeyID(), "", mixed},
		"write, lower host":    {key1.KeyID(), "", mixed},
		"write, wrong hint":    {mixed.KeyID(), v2, mixed},
		"hint":                 {mixed.WithVersion(v2).KeyID(), v2, mixed.WithVersion(v2)},
		"hint, lower host":     {key1.WithVersion(v2).KeyID(), v2, mixed.WithVersion(v2)},
		"other, given version": {other.WithVersion(v1).KeyID(), "", other.WithVersion(v1)},
		"other, hint":          {other.WithVersion(v2).KeyID(), v2, other.WithVersion(v2)},
	} {
		plain, ref, err := k.Decrypt(t.Context(), tt.id, tt.hint, []byte("dees"))
		require.NoError(t, err, name)
		require.Equal(t, tt.want, ref, name)
		require.Equal(t, []byte("seed"), plain)
	}
	require.Zero(t, s.count("list"))
}

func TestKeyring_DecryptRefusesIllFormedIDs(t *testing.T) {
	s := &safe{}
	k := pinned(t, s)
	for _, id := range []string{"", "x", strings.ToUpper(k.KeyID("")), k.KeyID("") + "0", k.KeyID("")[1:], strings.Repeat("a", 1<<20)} {
		_, _, err := k.Decrypt(t.Context(), id, "", []byte("block"))
		require.Equal(t, keyvault.UnknownKey, failure(t, err).Reason)
	}
	_, _, err := k.Decrypt(t.Context(), k.KeyID(""), "", nil)
	require.Equal(t, keyvault.BadRequest, failure(t, err).Reason)
	require.Zero(t, s.count(""))
}

func TestKeyring_ListsOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &safe{versions: map[string][]string{"k1": {v1}}}
		k := pinned(t, s, keyvault.Ref{Host: "second.vault.azure.net", Name: "k9"})
		id2 := key1.WithVersion(v2).KeyID()
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				// The hint does not hash to the ID, so it is not used.
				_, _, err := k.Decrypt(within(t, 3*time.Second), id2, v1, []byte("block"))
				e := failure(t, err)
				require.Equal(t, keyvault.UnknownKey, e.Reason)
				require.Contains(t, e.Text, "kvlab.vault.azure.net/keys/k1, second.vault.azure.net/keys/k9")
			})
		}
		wg.Wait()
		require.Equal(t, 2, s.count("list"), "each key once")
		require.Zero(t, s.count("decrypt"))

		// Random IDs for an hour cost one listing a minute.
		for i := range 3600 {
			_, _, err := k.Decrypt(within(t, 3*time.Second), fmt.Sprintf("%064x", i), "", []byte("block"))
			require.Equal(t, keyvault.UnknownKey, failure(t, err).Reason)
			time.Sleep(time.Second)
		}
		require.InDelta(t, 120, s.count("list"), 4)

		// A version that appears is found, and then known for good.
		s.versions["k1"] = append(s.versions["k1"], v2)
		time.Sleep(6 * time.Minute)
		_, ref, err := k.Decrypt(within(t, 3*time.Second), id2, "", []byte("block"))
		require.NoError(t, err)
		require.Equal(t, v2, ref.Version)
		n := s.count("list")
		_, _, err = k.Decrypt(within(t, 3*time.Second), id2, "", []byte("block"))
		require.NoError(t, err)
		require.Equal(t, n, s.count("list"))
	})
}

func TestKeyring_ListingDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &safe{err: map[string]error{"list": &keyvault.Error{Reason: keyvault.AccessDenied, Key: key1.WithVersion(""), Text: "no"}}}
		var warnings []string
		k, err := keyvault.NewPinned(keyvault.KeyringConfig{Vault: s, Write: key1, Warn: func(e *keyvault.Error) { warnings = append(warnings, e.Error()) }})
		require.NoError(t, err)
		for range 120 {
			_, _, err := k.Decrypt(within(t, 3*time.Second), key1.WithVersion(v2).KeyID(), "", []byte("block"))
			e := failure(t, err)
			require.Equal(t, keyvault.UnknownKey, e.Reason)
			require.Contains(t, e.Text, "--decrypt-key=")
			require.Contains(t, e.Text, `"list"`)
			time.Sleep(time.Second)
		}
		require.Len(t, warnings, 1)
		// Data under known versions is not touched by it.
		_, _, err = k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte("block"))
		require.NoError(t, err)
	})
}

// Hints come from outside, and anybody can hash a version that does not exist.
func TestKeyring_HintsAreBounded(t *testing.T) {
	s := &safe{versions: map[string][]string{"k1": {v1}}}
	k := pinned(t, s)
	for i := range 5000 {
		r := key1.WithVersion(versionID(i))
		_, ref, err := k.Decrypt(t.Context(), r.KeyID(), r.Version, []byte("block"))
		require.NoError(t, err)
		require.Equal(t, r, ref)
	}
	require.LessOrEqual(t, keyvault.KnownIDs(k), 1024+4)
	require.Zero(t, s.count("list"))
	_, ref, err := k.Decrypt(t.Context(), k.KeyID(""), "", []byte("block"))
	require.NoError(t, err)
	require.Equal(t, key1, ref)
}

// During an outage an unknown ID may well be ours: say "unreachable", not "unknown".
func TestKeyring_ListingUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &safe{versions: map[string][]string{"k1": {v2}}, err: map[string]error{"list": &keyvault.Error{Reason: keyvault.Unreachable, Text: "down"}}}
		s.versions = nil
		var warnings []string
		k, err := keyvault.NewPinned(keyvault.KeyringConfig{Vault: s, Write: key1, Warn: func(e *keyvault.Error) { warnings = append(warnings, e.Error()) }})
		require.NoError(t, err)
		id2 := key1.WithVersion(v2).KeyID()
		for range 30 {
			_, _, err := k.Decrypt(within(t, 3*time.Second), id2, "", []byte("block"))
			require.Equal(t, keyvault.Unreachable, failure(t, err).Reason)
			time.Sleep(time.Second)
		}
		require.Equal(t, 6, s.count("list"), "a fault heals: it is tried again every five seconds")
		require.Len(t, warnings, 1)
		s.err, s.versions = nil, map[string][]string{"k1": {v2}}
		time.Sleep(5 * time.Second)
		_, _, err = k.Decrypt(within(t, 3*time.Second), id2, "", []byte("block"))
		require.NoError(t, err)
	})
}

func TestKeyring_MergesIdenticalDecrypts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &safe{delay: 50 * time.Millisecond}
		k := pinned(t, s)
		plains := make([][]byte, 64)
		var wg sync.WaitGroup
		for i := range plains {
			wg.Go(func() {
				plain, ref, err := k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte("dees"))
				require.NoError(t, err)
				require.Equal(t, key1, ref)
				require.Equal(t, []byte("seed"), plain)
				clear(plain) // its own copy
				plains[i] = plain
			})
		}
		wg.Wait()
		require.Equal(t, 1, s.count("decrypt"))
		require.Equal(t, make([]byte, 4), s.given[0], "the copy that was shared is cleared")

		// Other blocks and other versions are other calls; later ones too.
		_, _, err := k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte("dees"))
		require.NoError(t, err)
		require.Equal(t, 2, s.count("decrypt"))
	})
}

func TestKeyring_BurstOfFewSeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &safe{delay: 40 * time.Millisecond}
		k := pinned(t, s)
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() {
				plain, _, err := k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte{byte(i % 40), 1})
				require.NoError(t, err)
				require.True(t, bytes.Equal(plain, []byte{1, byte(i % 40)}))
			})
		}
		wg.Wait()
		require.Equal(t, 40, s.count("decrypt"))
	})
}

func TestKeyring_WaitersLeaveAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := 0
		s := &safe{decrypt: func(ctx context.Context, _ keyvault.Ref) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				ended++
				return ctx.Err()
			}
		}}
		k := pinned(t, s)
		var wg sync.WaitGroup
		first, cancel := context.WithCancel(within(t, 3*time.Second))
		wg.Go(func() {
			_, _, err := k.Decrypt(first, k.KeyID(""), "", []byte("dees"))
			require.Equal(t, keyvault.Canceled, failure(t, err).Reason)
		})
		synctest.Wait()
		wg.Go(func() {
			_, _, err := k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte("dees"))
			require.NoError(t, err, "the first caller's leaving harms nobody")
		})
		wg.Go(func() {
			_, _, err := k.Decrypt(within(t, 500*time.Millisecond), k.KeyID(""), "", []byte("dees"))
			e := failure(t, err)
			require.Equal(t, keyvault.Unreachable, e.Reason)
			require.Equal(t, keyvault.CauseTimeout, e.Cause)
		})
		time.Sleep(100 * time.Millisecond)
		cancel()
		wg.Wait()
		require.Equal(t, 1, s.count("decrypt"))
		require.Zero(t, ended)

		// When all have given up, so does the call.
		alone, cancel := context.WithCancel(within(t, 3*time.Second))
		time.AfterFunc(50*time.Millisecond, cancel)
		_, _, err := k.Decrypt(alone, k.KeyID(""), "", []byte("x"))
		require.Equal(t, keyvault.Canceled, failure(t, err).Reason)
		synctest.Wait()
		require.Equal(t, 1, ended)
	})
}

// Whoever shares a call that panics is told, and the next one starts anew.
func TestKeyring_PanicReachesEveryWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &safe{decrypt: func(context.Context, keyvault.Ref) error {
			time.Sleep(time.Second)
			panic("odd")
		}}
		k := pinned(t, s)
		var wg sync.WaitGroup
		wg.Go(func() {
			require.Panics(t, func() { _, _, _ = k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte("dees")) })
		})
		synctest.Wait()
		wg.Go(func() {
			start := time.Now()
			_, _, err := k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte("dees"))
			require.ErrorContains(t, err, "panicked")
			require.Equal(t, time.Second, time.Since(start))
		})
		wg.Wait()
		s.decrypt = nil
		_, _, err := k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte("dees"))
		require.NoError(t, err)
	})
}

// Who joins late has time left when the first caller's is up.
func TestKeyring_LateWaiterStartsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		n := 0
		w.answer = func(r request) (*http.Response, error) {
			if n++; n == 1 {
				return nil, wait(r, time.Minute)
			}
			return nil, nil
		}
		c, seen := newClient(t, w, &bank{})
		k, err := keyvault.NewPinned(keyvault.KeyringConfig{Vault: c, Write: key1})
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _, err := k.Decrypt(within(t, time.Second), k.KeyID(""), "", []byte("dees"))
			require.Contains(t, failure(t, err).Text, "no answer from kvlab.vault.azure.net within 980 ms")
		})
		time.Sleep(500 * time.Millisecond)
		wg.Go(func() {
			_, _, err := k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte("dees"))
			require.NoError(t, err)
		})
		wg.Wait()
		require.Equal(t, 2, n)
		require.Len(t, seen.outcomes, 2)
		require.Equal(t, keyvault.CauseTimeout, seen.outcomes[0].Err.Cause)
	})
}

// Failing decrypts neither pile up nor outlast the fault. What is left running
// at the end of a bubble fails the test.
func TestKeyring_FailingDecryptsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = always(500, "InternalServerError", "", "")
		c, _ := newClient(t, w, &bank{})
		k, err := keyvault.NewPinned(keyvault.KeyringConfig{Vault: c, Write: key1})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for j := range 20 {
					start := time.Now()
					_, _, err := k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte{byte(i), byte(j)})
					require.Equal(t, keyvault.Unreachable, failure(t, err).Reason)
					require.Less(t, time.Since(start), 3*time.Second)
				}
			})
		}
		wg.Wait()
		w.answer = nil
		time.Sleep(1100 * time.Millisecond)
		_, _, err = k.Decrypt(within(t, 3*time.Second), k.KeyID(""), "", []byte("dees"))
		require.NoError(t, err, "the first good one succeeds at once")
	})
}
