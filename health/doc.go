// Package health decides, from what has already happened, whether a key is
// usable, and says so: to kube-apiserver through [Tracker.Ready], to kubelet
// and to people through [Handler].
//
// Start with [NewTracker], which holds the evidence and judges it, and
// [NewProber], which collects evidence when no traffic does. Nothing here asks
// the vault on behalf of somebody who asks for the state: however often Status
// and the endpoints are called, the vault sees two calls a minute, and a few more
// while a failure is being confirmed.
//
// # What is told
//
// A vault that cannot be reached says nothing about the key, and
// kube-apiserver holds the seeds it needs in memory. So a fault leaves Status
// "ok" for OutageGrace, a refusal for DenialGrace, and a key that the vault
// calls disabled, deleted or missing for KeyStateGrace. What has lasted longer
// is a loss, and only a successful remote decrypt under the write version ends
// it. A key that only refuses to encrypt (expired, or not yet valid) is never a
// loss, nor is a lost permission to encrypt while decrypts succeed. That one
// fails /readyz until an encrypt succeeds.
//
// # Concurrency
//
// All methods may be called from many goroutines. [Tracker.Ready] and
// [Tracker.View] read memory under a lock that is never held during I/O.
//
// # Failure
//
// The memory between two processes is a help, not a need: a state file that
// cannot be read or written is reported once and done without.
//
// # Secrets
//
// The state file holds the ciphertext of a random canary and the hash of its
// plaintext. Neither tells anything about a seed. The endpoints show reasons
// and texts of [keyvault.Error], which are made to be shown.
package health
