package keyvault_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/stretchr/testify/require"
)

// Case K05: deleted, purged, made anew and never there are told apart, the key
// that comes back works without a restart, and no data goes to another version.
func TestVault_DeletedPurgedAndMadeAnew(t *testing.T) {
	l := newLab(t, vault.Config{DeleteDelay: -1})
	block, err := l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
	require.NoError(t, err)
	// A client of its own each time: what one has found is good for seconds.
	decrypt := func() error {
		l.connect(t, azureJSON(t, l.srv), l.srv.Transport())
		_, _, err := l.kr.Decrypt(within(t, 3*time.Second), l.ref.KeyID(), "", block)
		return err
	}

	deletedAt := time.Now()
	require.NoError(t, l.kv.DeleteKey("k1"))
	e := failure(t, decrypt())
	require.Equal(t, keyvault.KeyDeleted, e.Reason)
	require.Contains(t, e.Text, "recover it (az keyvault key recover --vault-name kvlab --name k1), do not purge it")
	purge := deletedAt.UTC().AddDate(0, 0, 90)
	require.Contains(t, e.Text, "can be recovered until "+purge.Format("2006-01-02T"))
	require.WithinDuration(t, purge, e.PurgeAt, time.Minute)
	require.Contains(t, e.Text, "http 404, KeyNotFound, request "+e.RequestID)
	require.Equal(t, e, l.seen.outcomes[0].Err, "the evidence is the same")

	require.NoError(t, l.kv.RecoverKey("k1"))
	require.NoError(t, decrypt())

	require.NoError(t, l.kv.PurgeKey("k1"))
	e = failure(t, decrypt())
	require.Equal(t, keyvault.KeyNotFound, e.Reason)
	require.Contains(t, e.Text, "no such key, neither live nor deleted, which a vault also says in the seconds after a deletion")
	require.Contains(t, e.Text, "recover it and do not purge it")
	require.Empty(t, e.Missing, "one look does not tell")

	require.NoError(t, l.kv.ImportKey("k1", versionID(9), testKey(t)))
	e = failure(t, decrypt())
	require.Equal(t, keyvault.KeyNotFound, e.Reason)
	require.Contains(t, e.Text, "the key exists, but not this version of it")
	require.Equal(t, keyvault.MissingVersion, e.Missing)
	require.Zero(t, e.PurgeAt)
	require.Contains(t, e.Text, "made anew under the same name")
	require.Zero(t, l.srv.Count(vault.Match{Op: vault.OpDecrypt, Version: versionID(9)}))

	// The answer to whoever would make it anew is the same state.
	l.srv.AddFault(vault.Fault{Op: vault.OpDecrypt, Status: 409, Code: "Conflict", InnerCode: "ObjectIsDeletedButRecoverable"})
	e = failure(t, decrypt())
	require.Equal(t, keyvault.KeyDeleted, e.Reason)
	require.Contains(t, e.Text, "do not purge it")
}

// Case T04: who may only encrypt and decrypt gets the plain answer, and the looks
// that are denied are no evidence of anything.
func TestVault_MissingKeyNeedsNoPermission(t *testing.T) {
	l := newLab(t, vault.Config{DeleteDelay: -1})
	require.NoError(t, l.kv.Allow(l.srv.ClientID, vault.PermEncrypt, vault.PermDecrypt))
	require.NoError(t, l.kv.DeleteKey("k1"))
	_, err := l.c.Decrypt(within(t, 3*time.Second), l.ref, []byte("block"))
	e := failure(t, err)
	require.Equal(t, keyvault.KeyNotFound, e.Reason)
	require.Contains(t, e.Text, `no such key or version, or it is deleted: without the key permission "get"`)
	require.Empty(t, e.Missing)
	require.Len(t, l.seen.outcomes, 1)
	require.Equal(t, keyvault.OpDecrypt, l.seen.outcomes[0].Op)
}

// A missing key costs two looks every ten seconds, however often it is asked for,
// and none is worth the caller's deadline.
func TestClient_LooksForAMissingKeyRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = always(404, "KeyNotFound", "", "A key with (name/id) k1 was not found in this key vault.")
		c, _ := newClient(t, w, &bank{})
		for range 30 {
			_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
			require.Equal(t, keyvault.KeyNotFound, failure(t, err).Reason)
			time.Sleep(time.Second)
		}
		require.Equal(t, 30, w.calls("decrypt"))
		require.Equal(t, 3, w.calls("getdeleted"))
		require.Equal(t, 3, w.calls("get"))
		time.Sleep(time.Minute)

		w.answer = func(r request) (*http.Response, error) {
			if r.op != "decrypt" {
				return nil, wait(r, time.Minute)
			}
			return vaultError(r, 404, "KeyNotFound", "", ""), nil
		}
		start := time.Now()
		_, err := c.Decrypt(within(t, 10*time.Second), key1, []byte("block"))
		e := failure(t, err)
		require.Equal(t, []any{keyvault.KeyNotFound, 404}, []any{e.Reason, e.Status})
		require.LessOrEqual(t, time.Since(start), time.Second)

		time.Sleep(time.Minute)
		w.answer = func(r request) (*http.Response, error) {
			return vaultError(r, 404, "KeyNotFound", "", ""), wait(r, 950*time.Millisecond)
		}
		before := w.calls("getdeleted")
		_, err = c.Decrypt(within(t, time.Second), key1, []byte("block"))
		require.Equal(t, keyvault.KeyNotFound, failure(t, err).Reason)
		require.Equal(t, before, w.calls("getdeleted"))
	})
}

// A key is gone only when it has been neither live nor deleted for half a minute, and
// purged only if it was seen deleted before. What is not seen is no news.
func TestClient_GoneAndPurged(t *testing.T) {
	const live, deleted, neither, hidden, away, denied = "live", "deleted", "neither", "no deleted key shown", "away", "denied"
	type step struct {
		place   string // of the key, from now on
		wait    time.Duration
		reason  keyvault.Reason
		missing keyvault.Missing
		purge   bool
		says    string
	}
	const purged, gone, perhaps = "the key was purged", "it was purged, or never there", "which a vault also says"
	for name, steps := range map[string][]step{
		"never there": {
			{neither, 0, keyvault.KeyNotFound, "", false, perhaps},
			{neither, 15 * time.Second, keyvault.KeyNotFound, "", false, perhaps},
			{neither, 15 * time.Second, keyvault.KeyNotFound, keyvault.MissingKey, false, gone},
			{neither, time.Hour, keyvault.KeyNotFound, keyvault.MissingKey, false, gone},
		},
		"deleted, shown late, and purged": {
			{hidden, 0, keyvault.KeyNotFound, "", false, perhaps},
			{deleted, 11 * time.Second, keyvault.KeyDeleted, "", true, "can be recovered until 2023-02-12T"},
			{neither, time.Hour, keyvault.KeyNotFound, "", false, perhaps},
			{neither, time.Minute, keyvault.KeyNotFound, keyvault.MissingKey, false, purged},
		},
		"a look that fails is no news": {
			{deleted, 0, keyvault.KeyDeleted, "", true, "can be recovered until"},
			{away, time.Minute, keyvault.KeyDeleted, "", true, "can be recovered until"},
			{neither, time.Minute, keyvault.KeyNotFound, "", false, perhaps},
			{away, time.Minute, keyvault.KeyNotFound, "", false, perhaps},
			{neither, time.Minute, keyvault.KeyNotFound, keyvault.MissingKey, false, purged},
		},
		"used in between": {
			{neither, 0, keyvault.KeyNotFound, "", false, perhaps},
			{live, time.Minute, keyvault.Success, "", false, ""},
			{neither, time.Minute, keyvault.KeyNotFound, "", false, perhaps},
		},
		"recovered and deleted again": {
			{deleted, 0, keyvault.KeyDeleted, "", true, ""},
			{live, time.Minute, keyvault.Success, "", false, ""},
			{hidden, time.Minute, keyvault.KeyNotFound, "", false, perhaps},
			{hidden, 30 * time.Second, keyvault.KeyNotFound, keyvault.MissingKey, false, gone},
			{deleted, time.Minute, keyvault.KeyDeleted, "", true, ""},
		},
		"no permission to look": {
			{denied, 0, keyvault.KeyNotFound, "", false, "or it is deleted"},
			{denied, time.Hour, keyvault.KeyNotFound, "", false, "or it is deleted"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				place := live
				w := newWeb()
				w.answer = func(r request) (*http.Response, error) {
					switch {
					case place == live:
						return nil, nil
					case r.op == "decrypt", place == neither, place == hidden, r.op == "get" && place == deleted:
						return vaultError(r, 404, "KeyNotFound", "", ""), nil
					case place == away:
						return vaultError(r, 500, "InternalServerError", "", ""), nil
					case place == denied:
						return vaultError(r, 403, "Forbidden", "ForbiddenByRbac", ""), nil
					}
					return reply(r.http, 200, `{"key":{"kid":"https://kvlab.vault.azure.net/keys/k1/x"},"attributes":{},"deletedDate":1668432000,"scheduledPurgeDate":1676208000}`), nil
				}
				c, _ := newClient(t, w, &bank{})
				for i, s := range steps {
					place = s.place
					time.Sleep(s.wait)
					_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
					require.Equal(t, s.reason, keyvault.ReasonOf(err), i)
					if err == nil {
						continue
					}
					e := failure(t, err)
					require.Equal(t, s.missing, e.Missing, "%d: %s", i, e.Text)
					require.Equal(t, s.purge, !e.PurgeAt.IsZero(), i)
					require.Contains(t, e.Text, s.says, i)
					if s.missing == keyvault.MissingKey {
						require.Contains(t, e.Text, "restart none", "the scope of the loss")
						require.Contains(t, e.Text, "az keyvault key restore")
					}
				}
			})
		})
	}
}
