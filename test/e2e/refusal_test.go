package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/vault"
)

// A refusal is a way in which somebody says no.
type refusal struct {
	name, reason string
	begin, end   func(*trial)
}

func refusals() []refusal {
	must := func(r *trial, err error) { require.NoError(r.t, err) }
	return []refusal{
		{
			"access removed", accessDenied,
			func(r *trial) { must(r, r.key().Allow(r.vault.ClientID)) },
			func(r *trial) { must(r, r.key().Allow(r.vault.ClientID, vault.AllPermissions()...)) },
		},
		{
			"firewall closed", networkDenied,
			func(r *trial) { must(r, r.key().SetNetwork(vault.NetworkFirewall)) },
			func(r *trial) { must(r, r.key().SetNetwork(vault.NetworkOpen)) },
		},
		{
			"secret revoked", credentialsRefused,
			func(r *trial) {
				must(r, r.vault.SetSecrets(r.vault.ClientID, "another"))
				r.vault.RevokeTokens()
			},
			func(r *trial) { must(r, r.vault.SetSecrets(r.vault.ClientID, r.vault.ClientSecret)) },
		},
		{
			"name gone", vaultNotFound,
			func(r *trial) { r.names.answer(nameMissing); r.hangUp() },
			func(r *trial) { r.names.answer(nameFound) },
		},
	}
}

// TestOutage_Refused has somebody say no: that is borne for the denial grace, and then
// obeyed.
func TestOutage_Refused(t *testing.T) {
	t.Parallel()
	plugin := buildWithResolver(t)
	for _, f := range refusals() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			grace := times().denialGrace
			r := newTrialWithNames(t, "refused-"+fileName(f.name), plugin, planeConfig{nodes: 1, args: graces(0, grace)})
			n := r.nodes[0]
			from := r.begin(f.name)
			f.begin(r)
			seen := r.await(n, "right reason everywhere", from, seenWithin, all(shows(f.reason, true), exits(exitDegraded)))
			lost := from.Add(r.await(n, "obeyed as a loss", from, seenWithin+grace, all(shows(f.reason, false), exits(exitLost))))
			require.GreaterOrEqual(t, lost.Sub(from.Add(seen)), grace-seenWithin, "obeyed before the grace was over")
			r.hold("nothing fails inside the grace", from, nil, untilAt(lost.Add(-time.Second), quiet))
			r.await(n, "writes are refused after the grace", lost, refusedWithin, refuses(f.reason))
			f.end(r)
			r.healed(f.name)
			r.readable(from)
		})
	}
}

// hangUp ends the connections that the plugins hold to the vault's side.
func (r *trial) hangUp() { r.vault.RemoveFault(r.vault.AddFault(vault.Fault{Refuse: true})) }
