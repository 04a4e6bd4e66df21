package health

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"azure-kms-plugin/keyvault"
)

// memoryFormat is raised when a reader of the old format would misread the new.
const memoryFormat = 1

// maxMemory bounds what is read: the file is far smaller, but anybody who can
// write the directory can put anything there.
const maxMemory = 64 << 10

// record is the file's content.
type record struct {
	Format int `json:"format"`
	// Versions are those under which an Encrypt was answered, the last one last.
	Versions []savedVersion `json:"versions,omitempty"`
	proof
	// Seeds are what is kept of the hashes of the wrapped seeds that were wrapped or
	// unwrapped here, one after the other, the latest use last.
	Seeds []byte `json:"seeds,omitempty"`
	// Uses are the versions that data may be under.
	Uses []savedUse `json:"uses,omitempty"`
	// Before is the proof of the last of Versions, while the one that writes has
	// not answered an Encrypt yet: the next process begins with that.
	Before *proof `json:"before,omitempty"`
}

// A proof is what is known of one version.
type proof struct {
	Key         string         `json:"key"`
	Canary      *canary        `json:"canary,omitempty"`
	LastSuccess time.Time      `json:"lastSuccess,omitzero"`
	Failures    []savedFailure `json:"failures,omitempty"`
}

// A canary is a random secret that was encrypted once under the write version.
// Its plaintext is not kept: the hash is enough to recognise it.
type canary struct {
	Ciphertext []byte `json:"ciphertext"`
	SHA256     string `json:"plaintextSHA256"`
}

func newCanary(plaintext, ciphertext []byte) *canary {
	sum := sha256.Sum256(plaintext)
	return &canary{Ciphertext: ciphertext, SHA256: hex.EncodeToString(sum[:])}
}

func (c *canary) matches(plaintext []byte) bool {
	sum := sha256.Sum256(plaintext)
	return c.SHA256 == hex.EncodeToString(sum[:])
}

type savedVersion struct {
	Version string    `json:"version"`
	Created time.Time `json:"created,omitzero"`
}

type savedUse struct {
	Key  string    `json:"key"`
	Last time.Time `json:"last"`
}

type savedFailure struct {
	Reason keyvault.Reason `json:"reason"`
	First  time.Time       `json:"first"`
	// Encrypt is set on a failure that only encrypting meets.
	Encrypt bool `json:"encrypt,omitempty"`
	// Seed is set on that of a seed which was never opened here.
	Seed bool `json:"seed,omitempty"`
	// Fault is set on one that was not taken for what its reason says.
	Fault bool `json:"fault,omitempty"`
}

func readRecord(path string) (rec record, err error) {
	// Not following links and not blocking: the path may have become a link
	// or a fifo.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return rec, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return rec, errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxMemory+1))
	switch {
	case err != nil:
		return rec, err
	case len(data) > maxMemory:
		return rec, fmt.Errorf("larger than %d bytes", maxMemory)
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		// The decoder's text may quote the file.
		return record{}, errors.New("not the JSON that this program writes")
	}
	if rec.Format != memoryFormat {
		return record{}, fmt.Errorf("format %d, want %d", rec.Format, memoryFormat)
	}
	return rec, nil
}
