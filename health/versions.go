package health

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"azure-kms-plugin/keyvault"
)

// maxVersions bounds the versions that are remembered. More than the last few
// tell nothing: what is under them is found by its own annotation.
const maxVersions = 16

// LastVersion returns the version under which an Encrypt was last answered, by
// this process or one before it; a Ref without a version if none is known.
func (m *Memory) LastVersion() (keyvault.Ref, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.rec.Versions) == 0 {
		return m.key, time.Time{}
	}
	v := m.rec.Versions[len(m.rec.Versions)-1]
	return m.key.WithVersion(v.Version), v.Created
}

// Earlier reports whether a version has written before the one that did so last.
func (m *Memory) Earlier(version string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.find(version)
	return i >= 0 && i < len(m.rec.Versions)-1
}

// KeepVersion notes that an Encrypt is about to be answered under a version, and
// returns when that is in the file, or cannot be. A file that can no longer be
// written is removed: the next process would go back to what it says.
func (m *Memory) KeepVersion(ref keyvault.Ref, created time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.find(ref.Version)
	if i >= 0 && i == len(m.rec.Versions)-1 {
		if v := &m.rec.Versions[i]; v.Created.IsZero() && !created.IsZero() {
			v.Created = created.UTC()
			m.write()
		}
		return
	}
	if i >= 0 {
		if created.IsZero() {
			created = m.rec.Versions[i].Created
		}
		m.rec.Versions = slices.Delete(m.rec.Versions, i, i+1)
	}
	if len(m.rec.Versions) == maxVersions {
		m.rec.Versions = slices.Delete(m.rec.Versions, 0, 1)
	}
	m.rec.Before = nil
	m.rec.Versions = append(m.rec.Versions, savedVersion{Version: ref.Version, Created: created.UTC()})
	if m.rec.Key == "" {
		m.rec.Key = ref.URL() // so that the next process knows whose file it is
	}
	m.write()
	if m.faulty {
		m.written = nil
		if err := os.Remove(m.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.log.Error("state file is stale and cannot be removed: the next process may go back to an older key version",
				zap.String("path", m.path), zap.String("version", ref.Version), zap.Error(err))
		}
	}
}

// find returns the place of a version, or -1. The caller holds mu.
func (m *Memory) find(version string) int {
	return slices.IndexFunc(m.rec.Versions, func(v savedVersion) bool { return strings.EqualFold(v.Version, version) })
}
