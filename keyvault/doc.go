// Package keyvault encrypts and decrypts small secrets with keys in Azure Key
// Vault and Managed HSM, and says in one closed vocabulary why that failed.
//
// Start from [ReadConfig] and [NewCredential] for the identity, [NewClient] for
// single operations, and [NewFollowing] or [NewPinned] for the keyring that a KMS
// plugin serves from. A [Ref] names a key or a version; an [Error] says what was
// seen and what to mend.
//
// # Rotation
//
// A following keyring learns a new version of its key as soon as it is seen, checks
// it by a round trip, and writes with it a fixed time after its creation, by the
// vault's clock: all that follow one key switch together. It never goes back to an
// older version, nor writes with one that is disabled, not valid or not proven. The
// rules are in one value without clock, lock or I/O (ring.go); what calls the vault
// for it is in follow.go.
//
// # Budgets
//
// No call outlives its caller. An operation ends a little before its context's
// deadline, so that the caller still hears the cause, and within 8 s when there
// is none. At most one retry is made inside that time, by the SDK's own retry
// policy. [Background] marks calls that nobody waits for.
//
// # Files
//
// A [Credential] reads azure.json and the file that it names for every token.
// While one of them is of no use, what was read before signs in.
//
// # Concurrency
//
// Everything here is safe for concurrent use. A Client has at most 64
// interactive calls in flight; a Keyring merges identical Decrypts.
//
// # Failure
//
// Every error of a Client or Keyring is an *[Error]. A time-out keeps the last
// real cause. After repeated faults, and after the first key-state or refusal
// answer, a breaker repeats the last error from memory and asks the vault at
// most once a second.
//
// # Secrets
//
// No error, log line or formatted value of this package holds a secret, a
// token, a plaintext, a ciphertext or a response body. Plaintexts are returned
// to the caller, who owns the only copy that this package kept.
package keyvault
