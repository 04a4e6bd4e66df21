package health

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"azure-kms-plugin/keyvault"
)

// A Memory is the state file: what this process knows that the next one needs
// to answer its first Status while the vault is away. It is a help only, so
// every fault of it is logged once and otherwise ignored.
type Memory struct {
	path string
	key  keyvault.Ref // without version
	log  *zap.Logger

	mu      sync.Mutex
	rec     record
	written []byte // what the file holds, as far as we know
	faulty  bool   // the last write failed, and that was said
}

// MemoryPath names the state file of the plugin that serves a key at a socket
// address, in dir. Two plugins may share a directory, and one socket may be
// given another key, so both are part of the name; the version is not, because
// the memory of one key goes on when its version changes.
func MemoryPath(dir, address string, key keyvault.Ref) string {
	base := filepath.Base(strings.TrimPrefix(address, "unix://"))
	base = strings.Map(func(r rune) rune {
		if r == '@' || r == '/' || r < ' ' {
			return '_'
		}
		return r
	}, base)
	sum := sha256.Sum256([]byte(address + "\n" + strings.ToLower(key.WithVersion("").URL())))
	return filepath.Join(dir, base+"."+hex.EncodeToString(sum[:6])+".state")
}

// OpenMemory reads the state file at path. A file that is missing, cannot be
// read or belongs to another key makes an empty memory.
func OpenMemory(path string, key keyvault.Ref, log *zap.Logger) *Memory {
	if log == nil {
		log = zap.NewNop()
	}
	m := &Memory{path: path, key: key.WithVersion(""), log: log}
	rec, err := readRecord(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		log.Warn("state file ignored: starting without memory", zap.String("path", path), zap.Error(err))
	case m.isOurs(rec):
		m.rec = rec
		m.rec.Versions = slices.DeleteFunc(rec.Versions, func(v savedVersion) bool { return !keyvault.IsVersion(v.Version) })
	}
	m.rec.Format = memoryFormat
	return m
}

// isOurs reports whether a record is of this key, in any version.
func (m *Memory) isOurs(rec record) bool {
	ref, err := keyvault.ParseURL(rec.Key)
	return err == nil && ref.SameKey(m.key)
}

// evidence is the state that the memory vouches for at a moment: nothing for
// another version than the one that it is about. A success
// that is older than the outage grace, or lies in the future, proves nothing
// any more; without it, nothing is known.
//
// Every time is put on this process's monotonic clock, and none later than now:
// new evidence must count at once, wherever the wall clock is set to.
func (m *Memory) evidence(key keyvault.Ref, now time.Time, g Graces) (s state) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.of(key)
	if p == nil {
		return s
	}
	age := now.Sub(p.LastSuccess)
	if !p.LastSuccess.IsZero() && age >= -time.Minute && age < g.of(classFault) {
		s.success = onClock(p.LastSuccess, now)
	}
	for _, f := range p.Failures {
		if f.Reason.Kind() == keyvault.KindUnwritable && s.success.IsZero() {
			continue // it would stand for an answer of the vault, and is too old for that
		}
		f.First = onClock(f.First, now)
		op := keyvault.OpDecrypt
		if f.Encrypt {
			op = keyvault.OpEncrypt
		}
		o := keyvault.Outcome{Op: op, Key: key, Time: f.First, Err: keyvault.Earlier(op, key, f.Reason, f.First)}
		if f.Encrypt && denied(o.Err) {
			s.write.note(o) // no more than that: what it meant for reading was saved beside it
			continue
		}
		if f.Seed {
			o.Err = cutOff(o.Err)
			s.miss(o)
			s.unprobed(o)
			continue
		}
		if f.Fault {
			s.fail(classFault, o)
			continue
		}
		s.observe(o)
	}
	for c := range s.failed {
		s.failed[c].remembered = s.failed[c].err != nil
	}
	return s
}

// onClock is the moment as long before now as t is, and now if t is later.
func onClock(t, now time.Time) time.Time { return now.Add(-max(now.Sub(t), 0)) }

// onWall is what the wall clock as it is set now would have said at t, for
// another process to read: to the second, as nothing here is finer.
func onWall(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Add(t.Sub(now)).Round(0).UTC().Truncate(time.Second)
}

// seedPrints is what is known of the seeds that an earlier process has opened.
func (m *Memory) seedPrints() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rec.Seeds
}

// canary returns the canary of an earlier process, or nil.
func (m *Memory) canary(key keyvault.Ref) *canary {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.of(key); p != nil {
		if c := p.Canary; c != nil && len(c.Ciphertext) > 0 && len(c.SHA256) == 2*sha256.Size {
			return c
		}
	}
	return nil
}

// of returns what is known of a version, or nil. The caller holds mu.
func (m *Memory) of(key keyvault.Ref) *proof {
	switch {
	case strings.EqualFold(m.rec.Key, key.URL()): // the host may be spelt in another way
		return &m.rec.proof
	case m.rec.Before != nil && strings.EqualFold(m.rec.Before.Key, key.URL()):
		return m.rec.Before
	}
	return nil
}

// usesOf returns the versions that an earlier process has seen in use.
func (m *Memory) usesOf(now time.Time) (uses []*use) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, saved := range m.rec.Uses[:min(len(m.rec.Uses), maxUses)] {
		if key, err := keyvault.ParseURL(saved.Key); err == nil && key.Version != "" {
			uses = append(uses, &use{key: key, last: onClock(saved.Last, now)})
		}
	}
	return uses
}

// save keeps the canary of a version and the evidence about it, and what is known of
// seeds and of versions in use.
func (m *Memory) save(key keyvault.Ref, c *canary, s state, seeds []byte, uses []use) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.rec.Versions); n > 0 && !strings.EqualFold(m.rec.Key, key.URL()) && strings.EqualFold(m.rec.Key, m.key.WithVersion(m.rec.Versions[n-1].Version).URL()) {
		before := m.rec.proof
		before.Failures = slices.Clone(before.Failures)
		m.rec.Before = &before
	}
	m.rec.Key, m.rec.Canary, m.rec.Seeds = key.URL(), c, seeds
	now := time.Now()
	m.rec.Uses = m.rec.Uses[:0]
	for _, u := range uses {
		if now.Sub(u.last) <= maybeInUse {
			m.rec.Uses = append(m.rec.Uses, savedUse{Key: u.key.URL(), Last: onWall(u.last, now)})
		}
	}
	m.rec.LastSuccess = onWall(s.success, now)
	m.rec.Failures = m.rec.Failures[:0]
	if s.missed.err != nil && s.probed {
		m.rec.Failures = append(m.rec.Failures, savedFailure{Reason: s.missed.err.Reason, First: onWall(s.missed.first, now), Seed: true})
	}
	for i, f := range append(s.failed[:], s.write) {
		if f.err != nil {
			m.rec.Failures = append(m.rec.Failures, savedFailure{
				Reason: f.err.Reason, First: onWall(f.first, now), Encrypt: i == len(s.failed),
				Fault: class(i) == classFault && f.err.Reason.Kind() != keyvault.KindFault,
			})
		}
	}
	m.write()
}

// write writes the file if it would change. The caller holds mu.
func (m *Memory) write() {
	data, err := json.Marshal(m.rec)
	if err == nil {
		data = append(data, '\n')
		if string(data) == string(m.written) {
			return
		}
		err = replaceFile(m.path, data, 0o600)
	}
	if err != nil {
		if !m.faulty {
			m.log.Warn("state file not written: running on without memory", zap.String("path", m.path), zap.Error(err))
		}
		m.faulty = true
		return
	}
	m.written, m.faulty = data, false
}
