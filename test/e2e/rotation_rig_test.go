package e2e_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
	"azure-kms-plugin/test/vault"
)

// How fast the plugins follow here. In production it is minutes; what has to hold
// is the same.
const (
	activationDelay = 10 * time.Second
	pollInterval    = 2 * time.Second
)

// followers are nodes whose plugins follow the newest version.
func followers(nodes int) planeConfig {
	return planeConfig{nodes: nodes, unpinned: true, args: []string{
		"--activation-delay=" + activationDelay.String(), "--poll-interval=" + pollInterval.String(), "--log-format-json",
	}}
}

// addFollower adds a node whose plugin signs in as another principal.
func (p *controlPlane) addFollower(name, clientID, secret string) *node {
	p.t.Helper()
	l := *p.lab
	l.azureJSON = filepath.Join(p.dir, name+".json")
	text := fmt.Sprintf(`{"tenantId": %q, "aadClientId": %q, "aadClientSecret": %q}`, p.vault.TenantID, clientID, secret)
	require.NoError(p.t, os.WriteFile(l.azureJSON, []byte(text), 0o600))
	same := *p
	same.lab = &l
	n := same.newNode(name, "", followers(0))
	p.nodes = append(p.nodes, n)
	return n
}

// within has a subtest be the one that fails, until it ends.
func (p *controlPlane) within(t *testing.T) {
	outer := p.t
	p.t = t
	t.Cleanup(func() { p.t = outer })
}

// A change is a line of a plugin's log that puts a change of its key ID on record.
type change struct {
	Time            time.Time
	Msg             string
	From, To, Cause string
	Version         string
}

// changes are all that a plugin has logged, over its restarts.
func (n *node) changes(t *testing.T) (found []change) {
	t.Helper()
	f, err := os.Open(n.plugin.LogFile())
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var c change
		if json.Unmarshal(lines.Bytes(), &c) == nil && c.Msg == "key ID changed" {
			found = append(found, c)
		}
	}
	require.NoError(t, lines.Err())
	return found
}

// adopted is when a plugin began to write with a version; zero if it has not.
func (n *node) adopted(t *testing.T, version string) time.Time {
	t.Helper()
	for _, c := range n.changes(t) {
		if c.Version == version {
			return c.Time
		}
	}
	return time.Time{}
}

// A rotation is a new version, and the moment at which it begins to write.
type rotation struct {
	version string
	keyID   string
	due     time.Time
}

// rotate makes a new version. The emulator's clock is this machine's, and Key Vault
// knows the time of creation to the second.
func (p *controlPlane) rotate() rotation {
	p.t.Helper()
	version, err := p.vault.Vault(vaultName).CreateKey(keyName, vault.KeyOptions{Bits: 2048})
	require.NoError(p.t, err)
	return rotation{version, stack.KeyID(vaultName, keyName, version), time.Now().Truncate(time.Second).Add(activationDelay)}
}

// awaitPlugins waits until all plugins write with the version, and returns the time
// between the first and the last, and the last.
func (p *controlPlane) awaitPlugins(r rotation) (spread time.Duration, last time.Time) {
	p.t.Helper()
	var first time.Time
	require.Eventually(p.t, func() bool {
		first, last = time.Time{}, time.Time{}
		for _, n := range p.nodes {
			at := n.adopted(p.t, r.version)
			if at.IsZero() {
				return false
			}
			if first.IsZero() || at.Before(first) {
				first = at
			}
			if at.After(last) {
				last = at
			}
		}
		return true
	}, time.Minute, 20*time.Millisecond)
	return last.Sub(first), last
}

// awaitEncrypt waits until one of the kube-apiservers has asked for a new seed.
func (p *controlPlane) awaitEncrypt() {
	p.t.Helper()
	count := func() (sum int) {
		for _, n := range p.nodes {
			encrypts, err := n.plugin.Requests(p.t.Context(), "encrypt")
			require.NoError(p.t, err, n.name)
			sum += encrypts
		}
		return sum
	}
	before := count()
	require.Eventually(p.t, func() bool { return count() > before }, time.Minute, 5*time.Millisecond)
}

// awaitServers waits until every kube-apiserver writes under the version, and
// returns when the last one was seen to, and what was written to see that.
func (p *controlPlane) awaitServers(r rotation) (last time.Time, objects []stack.Object) {
	p.t.Helper()
	left, began := append([]*node{}, p.nodes...), time.Now()
	for round := 0; len(left) > 0; round++ {
		require.Less(p.t, time.Since(began), 3*time.Minute, "%s does not write under the new version", left[0].name)
		for i, n := range left {
			o := secret(fmt.Sprintf("turn-%s-%s-%d", r.version[:8], n.name, round))
			require.NoError(p.t, n.api.Client.Create(p.t.Context(), o), n.name)
			objects = append(objects, o)
			if p.keyIDOf(o) == r.keyID {
				left, last = append(left[:i:i], left[i+1:]...), time.Now()
				break
			}
		}
		time.Sleep(100 * time.Millisecond) // as often as is worth knowing
	}
	return last, objects
}

// keyIDOf is the key ID under which an object lies in etcd.
func (p *controlPlane) keyIDOf(o stack.Object) string {
	p.t.Helper()
	resp, err := p.kv.Get(p.t.Context(), etcdKey(o))
	require.NoError(p.t, err)
	require.Len(p.t, resp.Kvs, 1)
	s, err := stack.ParseStored(resp.Kvs[0].Value)
	require.NoError(p.t, err)
	return s.KeyID
}

// lost are the failed reads that an outage which began then does not excuse. It
// excuses the reads of what another kube-apiserver had first written under a new
// seed when the vault was already away, or within the second before: nobody but
// the writer has ever seen that seed unwrapped.
func (p *controlPlane) lost(l *load, began time.Time) (lost []error) {
	p.t.Helper()
	stored, first := p.stored(), map[string]time.Time{} // when each seed was first written under
	for key, at := range l.written {
		seed := string(stored[key].Seed)
		if before, ok := first[seed]; !ok || at.Before(before) {
			first[seed] = at
		}
	}
	excused := 0
	for _, err := range l.reads.failed {
		var read *readError
		if errors.As(err, &read) && first[string(stored[etcdKey(read.object)].Seed)].After(began.Add(-time.Second)) {
			excused++
			continue
		}
		lost = append(lost, err)
	}
	report.row(p.t.Name(), "reads of a seed that only its writer has seen", fmt.Sprint(excused), fmt.Sprint(excused), "")
	return lost
}

// restartEverything leaves no process that knows a seed, and reads all objects.
func (p *controlPlane) restartEverything(objects []stack.Object) {
	p.t.Helper()
	p.each(func(n *node) error { return n.api.Stop() })
	p.each(func(n *node) error { return n.plugin.Stop() })
	p.start()
	began := time.Now()
	p.each(func(n *node) error { return n.list(p.t.Context(), objects) })
	report.took(p.t.Name(), "all listed by all after a restart of everything", len(objects)*len(p.nodes), time.Since(began))
}

// versions counts the objects in etcd by key ID.
func (p *controlPlane) versions() map[string]int {
	p.t.Helper()
	count := map[string]int{}
	for _, s := range p.stored() {
		count[s.KeyID]++
	}
	return count
}

func first(errs []error) string {
	var lines []string
	for _, err := range errs[:min(3, len(errs))] {
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n")
}
