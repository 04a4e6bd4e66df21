package vault_test

import (
	"net/http"
	"testing"
	"time"

	"azure-kms-plugin/test/vault"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	"github.com/stretchr/testify/require"
)

// A replicated is a key whose second version the replicas learn of late.
type replicated struct {
	srv    *vault.Server
	v      *vault.Vault
	c      *azkeys.Client
	clock  *clock
	v1, v2 string
}

func newReplicated(t *testing.T, r vault.Replication) *replicated {
	t.Helper()
	l := &replicated{clock: newClock()}
	l.srv = start(t, vault.Config{Now: l.clock.now, TokenLifetime: 24 * time.Hour})
	l.v = l.srv.HSM("hsmlab")
	var err error
	l.v1, err = l.v.CreateKey("k1", options())
	require.NoError(t, err)
	require.NoError(t, l.v.SetReplication(r))
	// Its creation date may be anything: what counts is when it came to be.
	l.v2, err = l.v.CreateKey("k1", vault.KeyOptions{Created: l.clock.now().Add(-time.Hour)})
	require.NoError(t, err)
	l.c = client(t, l.srv, l.v, l.srv.Transport())
	return l
}

// current is what a GET that names no version answers.
func (l *replicated) current(t *testing.T) string {
	t.Helper()
	got, err := l.c.GetKey(t.Context(), "k1", "", nil)
	require.NoError(t, err)
	return got.Key.KID.Version()
}

func (l *replicated) listed(t *testing.T) (list []string) {
	t.Helper()
	page, err := l.c.NewListKeyPropertiesVersionsPager("k1", nil).NextPage(t.Context())
	require.NoError(t, err)
	for _, item := range page.Value {
		list = append(list, item.KID.Version())
	}
	return list
}

// named is the status of each operation on the second version.
func (l *replicated) named(t *testing.T) (statuses []int) {
	t.Helper()
	_, err := l.c.GetKey(t.Context(), "k1", l.v2, nil)
	p := params(azkeys.EncryptionAlgorithmRSAOAEP256, []byte("seed"))
	_, err2 := l.c.Encrypt(t.Context(), "k1", l.v2, p, nil)
	_, err3 := l.c.UnwrapKey(t.Context(), "k1", l.v2, p, nil)
	for _, err := range []error{err, err2, err3} {
		status := 200
		if err != nil {
			status = refusal(t, err).StatusCode
		}
		statuses = append(statuses, status)
	}
	return statuses
}

func TestANewVersionIsUnknownForItsLag(t *testing.T) {
	l := newReplicated(t, vault.Replication{Lag: 6 * time.Minute})
	for range 3 {
		require.Equal(t, l.v1, l.current(t), "the version before it is the current one")
		require.Equal(t, []string{l.v1}, l.listed(t))
		require.Equal(t, []int{404, 404, 404}, l.named(t))
	}
	_, err := l.c.GetKey(t.Context(), "k1", l.v2, nil)
	code, _, _ := innerCode(t, err)
	require.Equal(t, "KeyNotFound", code)
	// Writes go to where the version is.
	rotated, err := l.c.UpdateKey(t.Context(), "k1", l.v2, azkeys.UpdateKeyParameters{}, nil)
	require.NoError(t, err)
	require.Equal(t, l.v2, rotated.Key.KID.Version())
	require.Len(t, l.v.Versions("k1"), 2, "the operator sees everything")

	l.clock.advance(6*time.Minute - time.Second)
	require.Equal(t, []int{404, 404, 404}, l.named(t))
	l.clock.advance(time.Second)
	require.Equal(t, []int{200, 200, 400}, l.named(t), "known; what is unwrapped is no block")
	require.Equal(t, l.v2, l.current(t))
	require.ElementsMatch(t, []string{l.v1, l.v2}, l.listed(t))
}

func TestAWholeKeyCanLag(t *testing.T) {
	l := newReplicated(t, vault.Replication{Lag: time.Minute})
	_, err := l.v.CreateKey("k2", options())
	require.NoError(t, err)
	_, err = l.c.GetKey(t.Context(), "k2", "", nil)
	require.Equal(t, 404, refusal(t, err).StatusCode)
	page, err := l.c.NewListKeyPropertiesVersionsPager("k2", nil).NextPage(t.Context())
	require.NoError(t, err)
	require.Empty(t, page.Value)

	require.NoError(t, l.v.SetReplication(vault.Replication{}))
	_, err = l.c.GetKey(t.Context(), "k2", "", nil)
	require.NoError(t, err, "without lag everything is known at once")
	require.Error(t, l.v.SetReplication(vault.Replication{Lag: -1}))
	require.Error(t, l.v.SetReplication(vault.Replication{Alternate: -1}))
}

// Case R03: two replicas answer in turn.
func TestReplicasTakeTurns(t *testing.T) {
	l := newReplicated(t, vault.Replication{Alternate: time.Hour})
	for range 3 {
		require.Equal(t, l.v2, l.current(t))
		require.ElementsMatch(t, []string{l.v1, l.v2}, l.listed(t))
		require.Equal(t, []int{200, 200, 400}, l.named(t), "a call that names the version finds it")
		require.Equal(t, l.v1, l.current(t))
		require.Equal(t, []string{l.v1}, l.listed(t))
	}
	l.clock.advance(time.Hour)
	for range 2 {
		require.Equal(t, l.v2, l.current(t))
	}

	l = newReplicated(t, vault.Replication{Lag: time.Minute, Alternate: time.Minute})
	require.Equal(t, []string{l.v2, l.v1, l.v2}, []string{l.current(t), l.current(t), l.current(t)})
	require.Equal(t, []int{404, 404, 404}, l.named(t), "told of, and not there yet")
}

func TestAVaultsClockCanBeWrong(t *testing.T) {
	c := newClock()
	srv := start(t, vault.Config{Now: c.now})
	v, other := srv.Vault("kvlab"), srv.Vault("kvother")
	v.SetClockSkew(-10 * time.Minute)
	for _, kv := range []*vault.Vault{v, other} {
		_, err := kv.CreateKey("k1", vault.KeyOptions{Key: sharedKey(), Expires: c.now().Add(-5 * time.Minute)})
		require.NoError(t, err)
	}
	dateOf := func(kv *vault.Vault) time.Time {
		res, _ := get(t, kv, &http.Client{Transport: srv.Transport()}, "")
		at, err := http.ParseTime(res.Header.Get("Date"))
		require.NoError(t, err)
		return at
	}
	now := c.now().Truncate(time.Second)
	require.True(t, now.Add(-10*time.Minute).Equal(dateOf(v)))
	require.True(t, now.Equal(dateOf(other)))
	require.True(t, now.Add(-10*time.Minute).Equal(v.Versions("k1")[0].Created))
	p := params(azkeys.EncryptionAlgorithmRSAOAEP256, []byte("seed"))
	_, err := client(t, srv, v, srv.Transport()).Encrypt(t.Context(), "k1", "", p, nil)
	require.NoError(t, err, "by its own clock the key has not expired")
	_, err = client(t, srv, other, srv.Transport()).Encrypt(t.Context(), "k1", "", p, nil)
	_, inner, _ := innerCode(t, err)
	require.Equal(t, "KeyExpired", inner)
}

// A change of attributes shows in "updated", and only there.
func TestUpdatedMovesAndCreatedStays(t *testing.T) {
	c := newClock()
	srv := start(t, vault.Config{Now: c.now})
	v := srv.Vault("kvlab")
	ver, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	cl := client(t, srv, v, srv.Transport())
	made := c.now().Truncate(time.Second)
	for _, enabled := range []bool{false, true} {
		c.advance(time.Minute)
		require.NoError(t, v.SetEnabled("k1", ver, enabled))
		got, err := cl.GetKey(t.Context(), "k1", ver, nil)
		require.NoError(t, err)
		require.Equal(t, enabled, *got.Attributes.Enabled)
		require.True(t, made.Equal(*got.Attributes.Created))
		require.True(t, c.now().Truncate(time.Second).Equal(*got.Attributes.Updated))
	}
	c.advance(time.Minute)
	got, err := cl.GetKey(t.Context(), "k1", ver, nil)
	require.NoError(t, err)
	require.True(t, made.Add(2*time.Minute).Equal(*got.Attributes.Updated), "reading changes nothing")
}

func TestReplicationAndClockOverTheAdminPort(t *testing.T) {
	srv := start(t, vault.Config{})
	v := srv.Vault("kvlab")
	first, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	require.Equal(t, 200, admin(t, srv, "PATCH", "/vaults/kvlab", `{"alternate":"1h"}`, nil))
	require.Equal(t, 200, admin(t, srv, "PATCH", "/vaults/kvlab", `{"lag":"30m","clockSkew":"-2h"}`, nil))
	second, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	cl := client(t, srv, v, srv.Transport())
	for _, want := range []string{second, first, second} {
		got, err := cl.GetKey(t.Context(), "k1", "", nil)
		require.NoError(t, err)
		require.Equal(t, want, got.Key.KID.Version())
	}
	_, err = cl.GetKey(t.Context(), "k1", second, nil)
	require.Equal(t, 404, refusal(t, err).StatusCode)
	var versions []struct{ Created, Updated time.Time }
	require.Equal(t, 200, admin(t, srv, "GET", "/vaults/kvlab/keys/k1", "", &versions))
	require.WithinDuration(t, time.Now().Add(-2*time.Hour), versions[1].Created, time.Minute)
	require.Equal(t, versions[1].Created, versions[1].Updated)
	require.Equal(t, 400, admin(t, srv, "PATCH", "/vaults/kvlab", `{"lag":"-1s"}`, nil))
}
