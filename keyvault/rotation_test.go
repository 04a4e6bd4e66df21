package keyvault_test

import (
	"context"
	"encoding/hex"
	"flag"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An act is one thing that happens to the cluster or its vault.
type act struct {
	Name    string
	Replica int
	Version int // counted from the newest
	Wait    time.Duration
}

// A cluster is some replicas, each with a kube-apiserver on one connection.
type cluster struct {
	t        testing.TB
	vault    *modelVault
	replicas []*replica
	servers  []*apiServer
	written  []writtenSeed
	adopted  map[string]map[int]time.Time // by version and replica; zero for one that began with it
	changed  []time.Time                  // when the vault's versions were
	order    map[string]int               // of creation, by key ID
}

// An apiServer is what matters of one: it polls Status, and encrypts a seed when
// that names a new ID.
type apiServer struct {
	seed    string // the ID of the seed it writes with
	settled int    // the newest version under which its connection got a seed; -1 for none
}

type writtenSeed struct {
	id, version string
	block       []byte
	seed        string
}

func newCluster(t testing.TB, skews []time.Duration) *cluster {
	c := &cluster{t: t, vault: &modelVault{}, adopted: map[string]map[int]time.Time{}, order: map[string]int{}}
	c.rotate(nil)
	time.Sleep(time.Hour)
	for _, skew := range skews {
		c.replicas = append(c.replicas, newReplica(t, c.vault, skew))
		c.servers = append(c.servers, &apiServer{settled: -1})
	}
	return c
}

func (c *cluster) rotate(change func(*modelVersion)) {
	m := c.vault.rotate(change)
	c.order[id(m)] = c.vault.made
}

func (c *cluster) version(back int) *modelVersion {
	vs := c.vault.versions
	return vs[max(0, len(vs)-1-back)]
}

// poll is one Status of each kube-apiserver, with what follows from it.
func (c *cluster) poll() error {
	for i, r := range c.replicas {
		s := c.servers[i]
		told := r.keys.KeyID(r.held)
		if told == "" {
			continue // Status fails
		}
		if r.held == "" {
			r.held = told
		}
		r.told = told
		if c.order[told] < s.settled {
			return fmt.Errorf("replica %d tells version %d to a connection with a seed under %d", i, c.order[told], s.settled)
		}
		if err := c.noteAdopted(i, r); err != nil {
			return err
		}
		if s.seed == told {
			continue
		}
		seed := fmt.Sprintf("seed %d", len(c.written))
		block, ref, err := r.keys.Encrypt(context.Background(), told, []byte(seed))
		r.observe(keyvault.OpEncrypt, ref, err)
		if err != nil {
			continue
		}
		if ref.KeyID() != told {
			return fmt.Errorf("replica %d said %s and encrypted under %s", i, told, ref)
		}
		s.seed, s.settled = told, c.order[told]
		r.held = told
		c.written = append(c.written, writtenSeed{told, ref.Version, block, seed})
	}
	return nil
}

// noteAdopted notes when a replica began to write with a version. It must have been
// usable just before, but at a start, when data may be under one that no longer is.
func (c *cluster) noteAdopted(i int, r *replica) error {
	current := r.keys.WriteKey().Version
	if c.adopted[current] == nil {
		c.adopted[current] = map[int]time.Time{}
	}
	if _, ok := c.adopted[current][i]; ok {
		return nil
	}
	if r.events[len(r.events)-1].Cause != keyvault.AdoptedByRotation {
		c.adopted[current][i] = time.Time{}
		return nil
	}
	c.adopted[current][i] = time.Now()
	for _, m := range c.vault.versions {
		if m.id == current && !m.usable() && time.Since(m.updated) > 4*time.Second {
			return fmt.Errorf("replica %d has adopted a version that was not usable for %v", i, time.Since(m.updated))
		}
	}
	return nil
}

// quietFor reports whether nothing was changed in the last few seconds before t.
func (c *cluster) quietFor(d time.Duration, t time.Time) bool {
	for _, at := range c.changed {
		if !at.After(t) && t.Sub(at) <= d {
			return false
		}
	}
	return true
}

func (r *replica) observe(op keyvault.Op, ref keyvault.Ref, err error) {
	e, _ := err.(*keyvault.Error)
	r.keys.Observe(keyvault.Outcome{Op: op, Key: ref, Err: e, Time: time.Now()})
}

// probe is what the prober does, so that a fault ends.
func (c *cluster) probe() {
	for _, r := range c.replicas {
		ref := r.keys.WriteKey()
		if ref.Version == "" {
			continue
		}
		_, err := r.way.Decrypt(context.Background(), ref, []byte(ref.Version+hex.EncodeToString([]byte("canary"))))
		r.observe(keyvault.OpDecrypt, ref, err)
	}
}

// readable checks that every replica decrypts what any has written.
func (c *cluster) readable() error {
	for i, r := range c.replicas {
		if len(r.way.fail) > 0 {
			continue
		}
		for _, w := range c.written {
			usable := false
			for _, m := range c.vault.versions {
				usable = usable || m.id == w.version && m.enabled && !m.gone
			}
			if !usable {
				continue
			}
			plain, _, err := r.keys.Decrypt(context.Background(), w.id, w.version, w.block)
			if err != nil || string(plain) != w.seed {
				return fmt.Errorf("replica %d cannot read version %s: %v", i, w.version, err)
			}
		}
	}
	return nil
}

func (c *cluster) do(a act) {
	i := a.Replica % len(c.replicas)
	r := c.replicas[i]
	if slices.Contains(changes, a.Name) {
		c.changed = append(c.changed, time.Now())
	}
	switch a.Name {
	case "rotate":
		c.rotate(nil)
	case "rotate, disabled":
		c.rotate(func(m *modelVersion) { m.enabled = false })
	case "rotate, not yet valid":
		c.rotate(func(m *modelVersion) { m.notBefore = time.Now().Add(4 * time.Minute) })
	case "disable":
		c.vault.set(c.version(a.Version), func(m *modelVersion) { m.enabled = false })
	case "enable":
		c.vault.set(c.version(a.Version), func(m *modelVersion) { m.enabled = true })
	case "expire":
		c.vault.set(c.version(a.Version), func(m *modelVersion) { m.expires = time.Now() })
	case "make valid":
		c.vault.set(c.version(a.Version), func(m *modelVersion) { m.notBefore = time.Time{} })
	case "extend":
		c.vault.set(c.version(a.Version), func(m *modelVersion) { m.expires = time.Time{} })
	case "restore": // an old backup, without the newest version
		c.vault.set(c.version(a.Version), func(m *modelVersion) { m.gone = len(c.vault.versions) > 1 && m != c.vault.versions[0] })
	case "restart":
		r.stop()
		r.start(c.t)
		*c.servers[i] = apiServer{seed: c.servers[i].seed, settled: -1}
	case "restart without memory":
		r.stop()
		r.memory = &modelMemory{}
		r.start(c.t)
		*c.servers[i] = apiServer{seed: c.servers[i].seed, settled: -1}
	case "servers disagree":
		r.way.setLagging()
	case "polls fail":
		r.way.setFail(keyvault.Unreachable, keyvault.OpGet, keyvault.OpList)
	case "GET denied":
		r.way.setFail(keyvault.AccessDenied, keyvault.OpGet, keyvault.OpList)
	case "outage":
		r.way.setFail(keyvault.Unreachable, keyvault.OpGet, keyvault.OpList, keyvault.OpEncrypt, keyvault.OpDecrypt)
	case "heal":
		r.way.mu.Lock()
		r.way.fail, r.way.lagging = nil, false
		r.way.mu.Unlock()
	}
}

// play runs a schedule and returns the first invariant that does not hold.
func (c *cluster) play(acts []act) (err error) {
	defer func() {
		for _, r := range c.replicas {
			r.stop()
		}
	}()
	for n, a := range acts {
		c.do(a)
		for end := time.Now().Add(a.Wait); time.Now().Before(end); {
			time.Sleep(time.Second)
			synctest.Wait()
			if time.Now().Unix()%30 == 0 {
				c.probe()
			}
			if err := c.poll(); err != nil {
				return fmt.Errorf("act %d: %w", n, err)
			}
		}
		if err := c.readable(); err != nil {
			return fmt.Errorf("act %d: %w", n, err)
		}
	}
	return c.settle()
}

// settle lets every fault end. Then all must write with the newest usable version,
// but for those that write with a newer one already: they do not go back.
func (c *cluster) settle() error {
	for i := range c.replicas {
		c.do(act{Name: "heal", Replica: i})
	}
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		synctest.Wait()
		if time.Now().Unix()%30 == 0 {
			c.probe()
		}
		if err := c.poll(); err != nil {
			return err
		}
	}
	var best *modelVersion
	for _, m := range c.vault.versions {
		if m.usable() {
			best = m
		}
	}
	for i, r := range c.replicas {
		if at := c.order[r.keys.WriteKey().KeyID()]; best != nil && at < c.order[id(best)] {
			return fmt.Errorf("in the end replica %d writes with version %d, and %d is usable", i, at, c.order[id(best)])
		}
	}
	return nil
}

var changes = []string{
	"rotate", "rotate, disabled", "rotate, not yet valid", "disable", "enable", "make valid", "expire", "extend",
}

// quiet is without faults.
var quiet = append([]string{"rotate", "rotate", "wait", "restart"}, changes...)

var everything = append([]string{
	"restore", "restart without memory", "servers disagree", "polls fail", "GET denied", "outage", "heal", "heal", "heal",
}, quiet...)

func schedule(rt *rapid.T, names []string) ([]act, []time.Duration) {
	acts := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) act {
		return act{
			Name:    rapid.SampledFrom(names).Draw(rt, "act"),
			Replica: rapid.IntRange(0, 2).Draw(rt, "replica"),
			Version: rapid.IntRange(0, 2).Draw(rt, "version"),
			Wait:    time.Duration(rapid.IntRange(1, 400).Draw(rt, "wait")) * time.Second,
		}
	}), 1, 14).Draw(rt, "acts")
	skews := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) time.Duration {
		return time.Duration(rapid.IntRange(-500_000, 500_000).Draw(rt, "skew")) * time.Millisecond
	}), 1, 3).Draw(rt, "skews")
	return acts, skews
}

// check tries more schedules than rapid does by itself, unless told how many.
func check(t *testing.T, prop func(*rapid.T)) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		require.NoError(t, f.Value.Set("500"))
		defer f.Value.Set(f.DefValue)
	}
	rapid.Check(t, prop)
}

func TestRotation_WhateverHappens(t *testing.T) {
	check(t, func(rt *rapid.T) {
		acts, skews := schedule(rt, everything)
		var err error
		synctest.Test(t, func(t *testing.T) { err = newCluster(t, skews).play(acts) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// together checks that all replicas have adopted what one has, within two seconds. They
// look once more two seconds before a switch; a change that comes between
// the looks of two of them, some will see.
func (c *cluster) together() error {
	for version, at := range c.adopted {
		var first, last time.Time
		for _, when := range at {
			if when.IsZero() {
				continue
			}
			if first.IsZero() || when.Before(first) {
				first = when
			}
			if when.After(last) {
				last = when
			}
		}
		if first.IsZero() || !c.quietFor(5*time.Second, first) {
			continue
		}
		for i, r := range c.replicas {
			// One that began with a newer one, for want of memory, does not go back.
			if _, ok := at[i]; !ok && c.order[r.keys.WriteKey().KeyID()] < c.order[key0.WithVersion(version).KeyID()] {
				return fmt.Errorf("version %s was not adopted by replica %d", version, i)
			}
		}
		if last.Sub(first) > 2*time.Second {
			return fmt.Errorf("version %s was adopted over %v", version, last.Sub(first))
		}
	}
	return nil
}

func TestRotation_WithoutFaultsTogether(t *testing.T) {
	check(t, func(rt *rapid.T) {
		acts, skews := schedule(rt, quiet)
		var err error
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, skews)
			if err = c.play(acts); err != nil {
				return
			}
			err = c.together()
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}
