// Package health decides, from what has already happened, whether a key is
// usable, and says so: to kube-apiserver through [Tracker.Ready], to kubelet,
// programs and people through [Handler] and [StatusFile].
//
// Start with [NewTracker], which holds the evidence about the version that writes and
// judges it. [NewProber] collects evidence when no traffic does; [Uses] and [NewWatch]
// keep an eye on the older versions that data may be under; [NewReport] makes the
// status document of it all. Data flows in that order, and nothing here asks the vault
// on behalf of somebody who asks for the state: however often Status and the endpoints are
// called, the vault sees two calls a minute, a few more while a failure is being
// confirmed, and one now and then for each old version in use.
//
// # What is told
//
// The rules are two small machines without clock, lock or I/O: state (state.go,
// judge.go) for the version that writes, use (uses.go) for each older one.
//
// A vault that cannot be reached says nothing about the key, and
// kube-apiserver holds the seeds it needs in memory. So a fault leaves Status
// "ok" for the outage grace, a refusal for the denial grace, and a key that the vault
// calls disabled, deleted or missing for 15 seconds. What has lasted longer
// is a loss, and only a successful remote decrypt under the version that writes ends
// it. A key that only refuses to encrypt (expired, or not yet valid) is never a
// loss, nor is a lost permission to encrypt while decrypts succeed; those
// fail /readyz until an encrypt succeeds. A seed that was never opened on this node, and
// cannot be while the canary fails too, takes the node out of service. The state of an
// older version alone never fails Status: it raises an alarm.
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
