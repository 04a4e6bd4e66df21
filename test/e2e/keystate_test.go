package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/vault"
)

// TestOutage_KeyDisabled switches the key off, then has the network fail too. Only a
// decrypt brings writes back.
func TestOutage_KeyDisabled(t *testing.T) {
	t.Parallel()
	r := newTrial(t, "key-disabled", planeConfig{nodes: 1})
	from := r.begin("disabled")
	require.NoError(t, r.key().SetEnabled(keyName, "", false))
	r.lostFor(keyDisabled, from)

	later := r.begin("disabled, and the network fails")
	id := r.vault.AddFault(vault.Fault{Refuse: true})
	r.pass(later, healedWithin)
	r.refused("writes stay refused when the network fails too", later)
	later = r.begin("enabled, and the network fails")
	require.NoError(t, r.key().SetEnabled(keyName, "", true))
	r.pass(later, seenWithin)
	r.refused("writes stay refused until the vault can say that the key is back", later)
	r.vault.RemoveFault(id)
	r.healed("the key was disabled")
	r.readable(from)
}

// TestOutage_KeyDisabledUnseen has the network fail 5 seconds after the vault first said
// that the key is disabled, which is before that is obeyed.
func TestOutage_KeyDisabledUnseen(t *testing.T) {
	t.Parallel()
	r := newTrial(t, "key-disabled-unseen", planeConfig{nodes: 1})
	n := r.nodes[0]
	from := r.begin("disabled")
	require.NoError(t, r.key().SetEnabled(keyName, "", false))
	first := r.firstLogged(n, keyDisabled, stateWithin)
	r.pass(first, 5*time.Second)
	later := r.begin("disabled, and the network fails")
	id := r.vault.AddFault(vault.Fault{Drop: true})
	r.await(n, "obeyed as a loss", first, keyStateGrace+5*time.Second, all(shows(keyDisabled, false), exits(exitLost)))
	r.await(n, "writes are refused", from, refusedWithin, refuses(keyDisabled))
	refused := time.Now()
	r.pass(refused, seenWithin)
	r.refused("writes stay refused", refused)
	r.hold("never shown as a mere network failure once obeyed", later.Add(keyStateGrace), nil, never("Status", unreachable))
	require.NoError(t, r.key().SetEnabled(keyName, "", true))
	r.vault.RemoveFault(id)
	r.healed("the key was disabled")
	r.readable(from)
}

// TestOutage_KeyDeleted deletes the key and recovers it.
func TestOutage_KeyDeleted(t *testing.T) {
	t.Parallel()
	r := newTrial(t, "key-deleted", planeConfig{nodes: 1})
	from := r.begin("deleted")
	require.NoError(t, r.key().DeleteKey(keyName))
	r.lostFor(keyDeleted, from)
	d, err := r.nodes[0].document(t.Context())
	require.NoError(t, err)
	require.NotNil(t, d.Failure)
	require.NotNil(t, d.Failure.ScheduledPurgeTime, "the plugin may read when the key is purged")
	require.WithinDuration(t, time.Now().AddDate(0, 0, 90), *d.Failure.ScheduledPurgeTime, time.Hour)
	require.NoError(t, r.key().RecoverKey(keyName))
	r.healed("the key was deleted")
	r.readable(from)
	r.hold("never called unreachable", from, nil, never("", unreachable))
}

// TestOutage_KeyPurged deletes the key and purges it. No repair is left to show.
func TestOutage_KeyPurged(t *testing.T) {
	t.Parallel()
	r := newTrial(t, "key-purged", planeConfig{nodes: 1})
	n := r.nodes[0]
	from := r.begin("deleted")
	require.NoError(t, r.key().DeleteKey(keyName))
	r.await(n, "right reason everywhere", from, stateWithin, named(keyDeleted))
	purged := r.begin("purged")
	require.NoError(t, r.key().PurgeKey(keyName))
	r.await(n, "right reason everywhere after the purge", purged, 2*time.Minute, all(shows(keyNotFound, false), exits(exitLost)))
	require.Eventually(t, func() bool {
		d, err := n.document(t.Context())
		return err == nil && d.Failure != nil && strings.Contains(d.Failure.Text, "purged") && strings.Contains(d.Failure.Text, "every object")
	}, time.Minute, time.Second, "/status does not say that the key was purged, and what is lost")
	report.row(t.Name(), "said that it was purged, and what is lost", "1", "0", "")
	r.readable(from)
	r.hold("never called unreachable", from, nil, never("", unreachable))
}

// TestOutage_KeyExpired has the key expire: it decrypts, and what runs is not disturbed.
func TestOutage_KeyExpired(t *testing.T) {
	t.Parallel()
	r := newTrial(t, "key-expired", planeConfig{nodes: 1})
	n := r.nodes[0]
	from := r.begin("expired")
	require.NoError(t, r.key().SetExpires(keyName, "", time.Now().Add(-time.Minute)))
	// Nobody but a look at the key's attributes notices. Those come once a minute.
	r.await(n, "right reason everywhere", from, 90*time.Second, all(shows(keyExpired, true), exits(exitDegraded)))
	d, err := n.document(t.Context())
	require.NoError(t, err)
	encryption, why := d.condition("EncryptionReady")
	require.Equal(t, "False "+keyExpired, encryption+" "+why)
	require.NotEmpty(t, d.Alarms)
	require.Contains(t, d.Alarms[0].Text, "restart", "what a restart would cost")
	r.pass(from, max(times().outage, 2*shortestOutage))
	r.undisturbed("no write and no read fails, /readyz is green", from)
	require.NoError(t, r.key().SetExpires(keyName, "", time.Time{}))
	from = r.begin("extended")
	r.await(n, "healed", from, 90*time.Second, well)
}

func (r *trial) key() *vault.Vault { return r.vault.Vault(vaultName) }

// lostFor waits through what a loss of the key has to bring.
func (r *trial) lostFor(reason string, from time.Time) {
	r.t.Helper()
	n := r.nodes[0]
	r.await(n, "right reason everywhere", from, stateWithin, named(reason))
	r.await(n, "obeyed as a loss", from, stateWithin+keyStateGrace, all(shows(reason, false), exits(exitLost)))
	r.await(n, "writes are refused", from, refusedWithin, refuses(reason))
}

// refused demands that since from no write was taken and Status never said ok.
func (r *trial) refused(what string, from time.Time) {
	r.t.Helper()
	r.hold(what, from, nil, func(s sample) (lacks []string) {
		if s.write == "ok" || s.plugin["Status"].ok {
			lacks = append(lacks, fmt.Sprintf("write %s, Status %s", s.write, s.plugin["Status"].text))
		}
		return lacks
	})
}

// firstLogged is when the plugin first logged a reason.
func (r *trial) firstLogged(n *node, reason string, within time.Duration) (at time.Time) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		lines, err := n.stateLines()
		require.NoError(r.t, err)
		at = time.Now()
		return len(lines) > 0 && lines[len(lines)-1].Reason == reason
	}, within, 50*time.Millisecond, "no %s in the log", reason)
	return at
}
