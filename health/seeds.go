package health

import (
	"crypto/sha256"
	"slices"
	"sync"

	"azure-kms-plugin/keyvault"
)

const (
	// maxSeeds bounds the seeds that are recognised. A kube-apiserver makes one at each
	// start and each rotation, so this is months of a busy control plane.
	maxSeeds = 1024
	// seedPrint is how much of a wrapped seed's hash is kept: nobody gains anything by
	// having one taken for another.
	seedPrint = 12
)

// seeds are those that were wrapped or unwrapped on this node, the latest use last. A
// kube-apiserver that asks for one of them again holds nothing that others do not.
type seeds struct {
	mu    sync.Mutex
	order [][seedPrint]byte
}

func (s *seeds) has(sum [sha256.Size]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.order, [seedPrint]byte(sum[:]))
}

func (s *seeds) keep(sum [sha256.Size]byte) {
	print := [seedPrint]byte(sum[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.order, print); i >= 0 {
		s.order = slices.Delete(s.order, i, i+1)
	} else if len(s.order) == maxSeeds {
		s.order = slices.Delete(s.order, 0, 1)
	}
	s.order = append(s.order, print)
}

// bytes and load are for the state file.
func (s *seeds) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]byte, 0, seedPrint*len(s.order))
	for _, print := range s.order {
		out = append(out, print[:]...)
	}
	return out
}

func (s *seeds) load(data []byte) {
	for print := range slices.Chunk(data, seedPrint) {
		if len(print) == seedPrint && len(s.order) < maxSeeds {
			s.order = append(s.order, [seedPrint]byte(print))
		}
	}
}

// Seed takes in what came of a seed that a kube-apiserver has asked to wrap or unwrap.
// One that was never opened here, and cannot be because the vault is out of reach, is what
// takes a node out of service, if the canary bears it out: that is asked for at once.
func (t *Tracker) Seed(e keyvault.SeedEvent) {
	switch {
	case e.Err == nil:
		t.seeds.keep(e.Sum)
	case e.Op == keyvault.OpDecrypt && away(e.Err) && !t.seeds.has(e.Sum):
		failure := cutOff(e.Err)
		t.mu.Lock()
		key, before := t.key, t.state.missed.err != nil
		t.mu.Unlock()
		t.update(key, func(s *state) bool {
			s.miss(keyvault.Outcome{Op: keyvault.OpDecrypt, Key: key, Err: failure, Time: e.Time})
			return false
		})
		if !before {
			t.ask()
		}
	}
}

// cutOff is the failure of such a seed, as it is shown.
func cutOff(err *keyvault.Error) *keyvault.Error {
	e := *err
	e.Text = "a seed that another kube-apiserver has made cannot be opened on this node, which is therefore not ready: " + e.Text
	return &e
}

// unprobed notes that the canary could not be decrypted.
func (t *Tracker) unprobed(key keyvault.Ref, o keyvault.Outcome) {
	t.update(key, func(s *state) bool { s.unprobed(o); return false })
}
