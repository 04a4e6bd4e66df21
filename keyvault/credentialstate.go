package keyvault

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// A CredentialState is how signing in is doing, for metrics and the status document.
type CredentialState struct {
	// Method is the way to sign in.
	Method string
	// Expires is when the certificate, or the identity file that holds it, is of no
	// more use; zero where none signs in. A federated token is not told: it is
	// renewed every hour.
	Expires time.Time
	// Reloads counts the times that a changed azure.json, or file that it names, got
	// its first token; FailedReloads those that one could not be used, so that what was
	// read before still was.
	Reloads       uint64
	FailedReloads uint64
	// Fault is what keeps a file from being used now; empty when all is well.
	Fault string
}

// State tells how signing in is doing. It reads no file and does not wait for one.
func (c *Credential) State() CredentialState {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := CredentialState{Method: c.cfg.Method(), Reloads: c.reloads, FailedReloads: c.failedReloads, Fault: c.fault}
	if c.used != nil && c.used.certificate != nil {
		s.Expires = c.used.expires
	}
	return s
}

// A fingerprint tells identities apart without keeping what they sign in with.
type fingerprint [sha256.Size]byte

// fingerprint is the same for two identities that would send the same.
func (id *identity) fingerprint() (sum fingerprint) {
	h := sha256.New()
	add := func(part []byte) {
		// The length keeps the end of one part from passing for the begin of the next.
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	for _, part := range []string{string(id.method), id.authority, id.tenant, id.client, id.secret.Reveal()} {
		add([]byte(part))
	}
	for _, cert := range id.chain() {
		add(cert.Raw)
	}
	h.Sum(sum[:0])
	return sum
}

// count notes that id got a token: a reload, unless the last one was got with the
// same. The caller holds mu.
func (c *Credential) count(id *identity) {
	sum := id.fingerprint()
	if c.proven != (fingerprint{}) && c.proven != sum {
		c.reloads++
	}
	c.proven = sum
}
