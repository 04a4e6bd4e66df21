package vault_test

import (
	"crypto/rand"
	"crypto/rsa"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"azure-kms-plugin/test/vault"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	"github.com/stretchr/testify/require"
)

// clock is a clock that moves only when told.
type clock struct{ at atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.at.Store(time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC).UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.at.Load()) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

func TestVersionsAreListedInPagesAndInNoOrder(t *testing.T) {
	c := newClock()
	srv := start(t, vault.Config{Now: c.now})
	v := srv.Vault("kvlab")
	priv, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	var made []string
	for range 60 {
		ver, err := v.CreateKey("k1", vault.KeyOptions{Key: priv})
		require.NoError(t, err)
		made = append(made, ver)
		c.advance(time.Second)
	}
	cl := client(t, srv, v, srv.Transport())
	pager := cl.NewListKeyPropertiesVersionsPager("k1", nil)
	var sizes []int
	var listed []string
	created := map[string]time.Time{}
	for pager.More() {
		page, err := pager.NextPage(t.Context())
		require.NoError(t, err)
		sizes = append(sizes, len(page.Value))
		for _, item := range page.Value {
			listed = append(listed, item.KID.Version())
			created[item.KID.Version()] = *item.Attributes.Created
			require.True(t, *item.Attributes.Enabled)
		}
		if page.NextLink != nil {
			require.True(t, strings.HasPrefix(*page.NextLink, "https://kvlab.vault.azure.net/keys/k1/versions?"), *page.NextLink)
		}
	}
	require.Equal(t, []int{25, 25, 10}, sizes)
	require.ElementsMatch(t, made, listed)
	require.NotEqual(t, made, listed, "the order must teach clients to sort")
	slices.SortFunc(listed, func(a, b string) int { return created[a].Compare(created[b]) })
	require.Equal(t, made, listed)
	require.Zero(t, created[made[0]].Nanosecond(), "created has a resolution of 1 s")
	require.Equal(t, 3, srv.Calls()["list"])

	page, err := cl.NewListKeyPropertiesVersionsPager("missing", nil).NextPage(t.Context())
	require.NoError(t, err, "a list never tells that a key is gone")
	require.Empty(t, page.Value)
}

func TestSoftDeleteShowsLateAndEndsByPurge(t *testing.T) {
	c := newClock()
	srv := start(t, vault.Config{Now: c.now, RecoverableDays: 7, TokenLifetime: 30 * 24 * time.Hour})
	v := srv.Vault("kvlab")
	ver, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	cl := client(t, srv, v, srv.Transport())
	getStatus := func() int {
		_, err := cl.GetKey(t.Context(), "k1", ver, nil)
		if err == nil {
			return 200
		}
		return refusal(t, err).StatusCode
	}
	getDeleted := func() (azkeys.GetDeletedKeyResponse, error) { return cl.GetDeletedKey(t.Context(), "k1", nil) }

	_, err = getDeleted()
	_, _, text := innerCode(t, err)
	require.Equal(t, "Deleted Key not found: k1", text)

	deleted, err := cl.DeleteKey(t.Context(), "k1", nil)
	require.NoError(t, err)
	require.Equal(t, "https://kvlab.vault.azure.net/deletedkeys/k1", *deleted.RecoveryID)
	require.Equal(t, 404, getStatus(), "at once")
	for range 7 {
		_, err = getDeleted()
		require.Equal(t, 404, refusal(t, err).StatusCode)
		_, err = cl.CreateKey(t.Context(), "k1", azkeys.CreateKeyParameters{Kty: to.Ptr(azkeys.KeyTypeRSA)}, nil)
		_, inner, _ := innerCode(t, err)
		require.Equal(t, "ObjectIsBeingDeleted", inner)
		c.advance(time.Second)
	}
	got, err := getDeleted()
	require.NoError(t, err)
	require.Equal(t, 7*24*time.Hour, got.ScheduledPurgeDate.Sub(*got.DeletedDate))
	require.Equal(t, "CustomizedRecoverable+Purgeable", *got.Attributes.RecoveryLevel)
	require.Equal(t, int32(7), *got.Attributes.RecoverableDays)
	_, err = v.CreateKey("k1", options())
	require.ErrorContains(t, err, "ObjectIsDeletedButRecoverable")
	page, err := cl.NewListDeletedKeyPropertiesPager(nil).NextPage(t.Context())
	require.NoError(t, err)
	require.Len(t, page.Value, 1)

	_, err = cl.RecoverDeletedKey(t.Context(), "k1", nil)
	require.NoError(t, err)
	require.Equal(t, 200, getStatus())
	_, err = getDeleted()
	require.Equal(t, 404, refusal(t, err).StatusCode)

	require.NoError(t, v.DeleteKey("k1"))
	require.Error(t, v.DeleteKey("k1"))
	c.advance(7 * time.Second)
	_, err = getDeleted()
	require.NoError(t, err)
	c.advance(7 * 24 * time.Hour)
	_, err = getDeleted()
	require.Equal(t, 404, refusal(t, err).StatusCode, "purged when its time has come")
	next, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	require.Equal(t, 404, getStatus(), "a new key of the same name has none of the old versions")
	require.Len(t, v.Versions("k1"), 1)
	require.Equal(t, next, v.Versions("k1")[0].ID)

	require.NoError(t, v.DeleteKey("k1"))
	c.advance(7 * time.Second)
	_, err = cl.PurgeDeletedKey(t.Context(), "k1", nil)
	require.NoError(t, err)
	_, err = getDeleted()
	require.Equal(t, 404, refusal(t, err).StatusCode)
	require.Error(t, v.RecoverKey("k1"))
}

func TestTheOperatorNeedsNoPatience(t *testing.T) {
	srv := start(t, vault.Config{RecoverDelay: time.Hour})
	v := srv.Vault("kvlab")
	_, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	cl := client(t, srv, v, srv.Transport())
	require.NoError(t, v.DeleteKey("k1"))
	require.NoError(t, v.RecoverKey("k1"), "although it is not shown as deleted yet")
	_, err = cl.GetKey(t.Context(), "k1", "", nil)
	require.NoError(t, err)
	// By the service's own operation it takes its time.
	require.NoError(t, v.DeleteKey("k1"))
	srv.AdvanceClock(7 * time.Second)
	_, err = cl.RecoverDeletedKey(t.Context(), "k1", nil)
	require.NoError(t, err)
	_, err = cl.GetKey(t.Context(), "k1", "", nil)
	require.Equal(t, 404, refusal(t, err).StatusCode)
	_, err = cl.CreateKey(t.Context(), "k1", azkeys.CreateKeyParameters{Kty: to.Ptr(azkeys.KeyTypeRSA)}, nil)
	_, inner, _ := innerCode(t, err)
	require.Equal(t, "ObjectIsBeingRecovered", inner)
	require.NoError(t, v.PurgeKey("k1"))
	require.Error(t, v.PurgeKey("k1"))
}

func TestManagedHSMHasItsOwnShapes(t *testing.T) {
	srv := start(t, vault.Config{HSMVersions404: true})
	v := srv.HSM("hsmlab")
	ver, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	cl := client(t, srv, v, srv.Transport())
	got, err := cl.GetKey(t.Context(), "k1", "", nil)
	require.NoError(t, err)
	require.Equal(t, azkeys.KeyTypeRSAHSM, *got.Key.Kty)
	require.Equal(t, "https://hsmlab.managedhsm.azure.net/keys/k1/"+ver, string(*got.Key.KID))

	require.NoError(t, v.Allow(srv.ClientID, vault.PermGet, vault.PermList))
	_, err = cl.GetDeletedKey(t.Context(), "k1", nil)
	code, inner, text := innerCode(t, err)
	require.Equal(t, []string{"AccessDenied", ""}, []string{code, inner}, "reading deleted keys takes another role")
	require.Regexp(t, `^Not authorized to access Microsoft\.KeyVault/managedHsm/.* on /keys \(Activity ID: [0-9a-f-]{36}\)$`, text)
	_, err = cl.NewListKeyPropertiesVersionsPager("missing", nil).NextPage(t.Context())
	require.Equal(t, 404, refusal(t, err).StatusCode)

	require.NoError(t, v.Allow(srv.ClientID, vault.AllPermissions()...))
	require.NoError(t, v.SetEnabled("k1", ver, false))
	_, err = cl.Decrypt(t.Context(), "k1", ver, params(azkeys.EncryptionAlgorithmRSAOAEP256, []byte("x")), nil)
	code, inner, _ = innerCode(t, err)
	require.Equal(t, []string{"KeyDisabled", ""}, []string{code, inner})
	require.NoError(t, v.DeleteKey("k1"))
	_, err = cl.GetDeletedKey(t.Context(), "k1", nil)
	require.NoError(t, err, "a Managed HSM shows it at once")

	srv.AddFault(vault.Fault{Host: "hsmlab", Status: 401, Times: 2})
	_, err = cl.GetKey(t.Context(), "k1", "", nil)
	require.Equal(t, 401, refusal(t, err).StatusCode)
	srv.AddFault(vault.Fault{Host: "hsmlab", InnerCode: "KeyExpired", Times: 1})
	_, err = cl.GetKey(t.Context(), "k1", "", nil)
	code, _, _ = innerCode(t, err)
	require.Equal(t, "KeyExpired", code)
}

func TestKeysComeAndChangeByTheServicesOwnOperations(t *testing.T) {
	srv := start(t, vault.Config{})
	v := srv.Vault("kvlab")
	cl := client(t, srv, v, srv.Transport())
	made, err := cl.CreateKey(t.Context(), "k1", azkeys.CreateKeyParameters{Kty: to.Ptr(azkeys.KeyTypeRSA), KeySize: to.Ptr(int32(3072))}, nil)
	require.NoError(t, err)
	require.Len(t, made.Key.N, 384)
	rotated, err := cl.RotateKey(t.Context(), "k1", nil)
	require.NoError(t, err)
	require.NotEqual(t, made.Key.KID.Version(), rotated.Key.KID.Version())
	require.Len(t, rotated.Key.N, 384)
	expires := time.Now().Add(time.Hour).Truncate(time.Second)
	updated, err := cl.UpdateKey(t.Context(), "k1", made.Key.KID.Version(), azkeys.UpdateKeyParameters{
		KeyAttributes: &azkeys.KeyAttributes{Enabled: to.Ptr(false), Expires: &expires}, KeyOps: []*azkeys.KeyOperation{to.Ptr(azkeys.KeyOperationDecrypt)},
	}, nil)
	require.NoError(t, err)
	require.False(t, *updated.Attributes.Enabled)
	require.True(t, expires.Equal(*updated.Attributes.Expires))
	require.Len(t, updated.Key.KeyOps, 1)

	priv, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	imported, err := cl.ImportKey(t.Context(), "k2", azkeys.ImportKeyParameters{Key: &azkeys.JSONWebKey{
		Kty: to.Ptr(azkeys.KeyTypeRSA), N: priv.N.Bytes(), E: big.NewInt(int64(priv.E)).Bytes(), D: priv.D.Bytes(),
		P: priv.Primes[0].Bytes(), Q: priv.Primes[1].Bytes(),
	}}, nil)
	require.NoError(t, err)
	require.Equal(t, priv.N.Bytes(), imported.Key.N)
	enc, err := cl.Encrypt(t.Context(), "k2", "", params(azkeys.EncryptionAlgorithmRSAOAEP256, []byte("seed")), nil)
	require.NoError(t, err)
	plain, err := priv.Decrypt(rand.Reader, enc.Result, &rsa.OAEPOptions{Hash: 5}) // crypto.SHA256
	require.NoError(t, err)
	require.Equal(t, "seed", string(plain), "others can open what was written")
	page, err := cl.NewListKeyPropertiesPager(nil).NextPage(t.Context())
	require.NoError(t, err)
	require.Len(t, page.Value, 2)
}

func TestKeysThatCannotBe(t *testing.T) {
	srv := start(t, vault.Config{})
	v := srv.Vault("kvlab")
	for name, tc := range map[string]struct {
		key  string
		o    vault.KeyOptions
		text string
	}{
		"size":    {"k1", vault.KeyOptions{Bits: 1024}, "2048, 3072 or 4096"},
		"version": {"k1", vault.KeyOptions{Version: "latest"}, "32 hexadecimal digits"},
		"ops":     {"k1", vault.KeyOptions{Ops: []string{"wrap"}}, "one of encrypt"},
		"name":    {"../secrets/s", vault.KeyOptions{}, "invalid name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := v.CreateKey(tc.key, tc.o)
			require.ErrorContains(t, err, tc.text)
		})
	}
	ver, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	_, err = v.CreateKey("k1", vault.KeyOptions{Version: ver})
	require.ErrorContains(t, err, "exists already")
	require.Error(t, v.SetEnabled("k1", strings.Repeat("0", 32), true))
	require.Error(t, v.SetKeyOps("k1", ver, "wrap"))
	require.Panics(t, func() { srv.Vault("not a name") })
	_, err = srv.VaultAt("kvlab.example.com")
	require.Error(t, err)
	_, err = vault.Start(vault.Config{RecoverableDays: 5, TokenLifetime: -1, KeepRequests: -1})
	require.ErrorContains(t, err, "RecoverableDays")
	require.ErrorContains(t, err, "TokenLifetime")
	require.ErrorContains(t, err, "KeepRequests")
}
