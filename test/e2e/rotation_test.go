package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/vault"
)

// TestRotation rotates the key under three kube-apiservers with three plugins that
// are written to and read from all the time: once in peace, then with outages that
// begin around the switch. Nothing is re-encrypted, so that in the end data lies
// under every version. Cases R01 and R02.
func TestRotation(t *testing.T) {
	p := newControlPlane(t, followers(3))
	p.start()
	objects := p.createAll(30, 15)
	ids := []string{p.keyID()}

	t.Run("in peace", func(t *testing.T) {
		p.within(t)
		watch := p.startWatch()
		load := p.startLoad(50, 200, objects)
		load.await(t, 500)
		r := p.rotate()
		ids = append(ids, r.keyID)
		spread, switched := p.awaitPlugins(r)
		last, turned := p.awaitServers(r)
		load.await(t, 500)
		objects = append(load.end(), turned...)
		load.report(t.Name(), "during a rotation")
		report.row(t.Name(), "plugins on the new key", "3", "0", fmt.Sprintf("within %v, %v after its time", round(spread), round(switched.Sub(r.due))))
		report.row(t.Name(), "kube-apiservers on the new key", "3", "0", fmt.Sprintf("%v after the plugins", round(last.Sub(switched))))
		require.Empty(t, load.writes.failed)
		require.Empty(t, load.reads.failed)
		require.Empty(t, watch.end().because("kms-providers"))
		require.Less(t, spread, 2*time.Second)
		require.Less(t, last.Sub(switched), 25*time.Second)
		p.restartEverything(objects)
	})

	for _, o := range []outage{
		{begins: -3 * time.Second, lasts: 35 * time.Second, fault: vault.Fault{Refuse: true}},
		{begins: time.Second, lasts: 200 * time.Second, fault: vault.Fault{Drop: true}},
		{afterSeed: true, lasts: 35 * time.Second, fault: vault.Fault{Refuse: true}},
	} {
		t.Run("outage "+o.String(), func(t *testing.T) {
			p.within(t)
			watch := p.startWatch()
			load := p.startLoad(20, 40, objects)
			r := p.rotate()
			ids = append(ids, r.keyID)
			began := p.play(o, r)
			spread, _ := p.awaitPlugins(r)
			_, turned := p.awaitServers(r)
			load.await(t, 60)
			objects = append(load.end(), turned...)
			load.report(t.Name(), "around an outage of "+o.lasts.String())
			report.row(t.Name(), "plugins on the new key", "3", "0", "within "+round(spread).String())
			watch.end()
			require.Empty(t, load.writes.failed, first(load.writes.failed))
			lost := p.lost(load, began)
			require.Empty(t, lost, first(lost))
		})
	}

	r := p.rotate()
	ids = append(ids, r.keyID)
	p.awaitPlugins(r)
	_, turned := p.awaitServers(r)
	p.restartEverything(append(objects, turned...))
	count := p.versions()
	for _, id := range ids {
		require.Positive(t, count[id], "nothing lies under %s", id)
	}
	report.row(t.Name(), "key versions with data in the end", fmt.Sprint(len(ids)), "0", "")
}

// An outage begins at a time relative to the switch, or as soon as the first
// kube-apiserver has a seed under the new version. One that lasts for more than
// three minutes outlives kube-apiserver's patience with a key ID that it has no seed
// under.
type outage struct {
	begins    time.Duration
	afterSeed bool
	lasts     time.Duration
	fault     vault.Fault
}

func (o outage) String() string {
	if o.afterSeed {
		return "after the first seed"
	}
	return o.begins.String()
}

// play waits for the moment, has the vault and the sign-in hosts go away, and come
// back. It returns when they went.
func (p *controlPlane) play(o outage, r rotation) (began time.Time) {
	p.t.Helper()
	if o.afterSeed {
		p.awaitEncrypt()
	} else {
		time.Sleep(time.Until(r.due.Add(o.begins)))
	}
	began = time.Now()
	id := p.vault.AddFault(o.fault)
	time.Sleep(o.lasts)
	p.vault.RemoveFault(id)
	return began
}

// TestRotation_WithoutGet has one replica that may no longer look at the key: it
// goes on writing with the version it has, and reads what the others write. One of the
// others is killed just before and just after the switch.
func TestRotation_WithoutGet(t *testing.T) {
	p := newControlPlane(t, followers(2))
	const blindID = "bbbbbbbb-bbbb-cccc-dddd-eeeeeeeeeeee"
	require.NoError(t, p.vault.AddPrincipal(vault.Principal{ClientID: blindID, Secrets: []string{"s"}}))
	require.NoError(t, p.vault.Vault(vaultName).Allow(blindID, vault.PermGet, vault.PermEncrypt, vault.PermDecrypt))
	blind := p.addFollower("blind", blindID, "s")
	p.start()
	require.NoError(t, p.vault.Vault(vaultName).Allow(blindID, vault.PermEncrypt, vault.PermDecrypt))
	objects := p.createAll(30, 15)
	load := p.startLoad(20, 40, objects)

	r := p.rotate()
	killed := p.nodes[0]
	for _, offset := range []time.Duration{-time.Second, 500 * time.Millisecond} {
		time.Sleep(time.Until(r.due.Add(offset)))
		killed.plugin.Kill()
		require.NoError(t, killed.plugin.Start(t.Context()))
	}
	p.nodes = p.nodes[:2]
	_, _ = p.awaitPlugins(r)
	_, turned := p.awaitServers(r)
	// Once it has answered an Encrypt under the new version, it begins with that.
	killed.plugin.Kill()
	require.NoError(t, killed.plugin.Start(t.Context()))
	changes := killed.changes(t)
	require.Equal(t, "memory", changes[len(changes)-1].Cause)
	require.Equal(t, r.keyID, changes[len(changes)-1].To)

	p.nodes = append(p.nodes, blind)
	o := secret("by-the-blind")
	require.NoError(t, blind.api.Client.Create(t.Context(), o))
	require.Equal(t, p.keyID(), p.keyIDOf(o))
	load.await(t, 200)
	objects = append(append(load.end(), turned...), o)
	load.report(t.Name(), "with one replica without get, one killed thrice")
	require.Empty(t, load.writes.failed, first(load.writes.failed))
	require.Empty(t, load.reads.failed, first(load.reads.failed))
	require.NoError(t, blind.restartServer(t.Context()))
	require.NoError(t, blind.list(t.Context(), objects))
	require.True(t, blind.adopted(t, r.version).IsZero())
	decrypts, err := blind.plugin.Requests(t.Context(), "decrypt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, decrypts, 3, "the seeds of the others")
}
