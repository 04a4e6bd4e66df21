// Package doctor finds out what keeps a plugin from its key: it walks the way of a
// request from the name of the vault to the decrypt, and looks at the socket.
//
// Start with [Walk]. It returns a [Report] of [Step]s in a fixed order, each of which
// says what it saw. The first that fails ends the walk along the vault, because what
// comes after it would fail for the same reason; the socket is looked at in any case.
//
// # What it does not do
//
// It changes nothing: no file is written, no socket bound, and the vault is asked to
// encrypt 32 random bytes and to decrypt what came of them, nothing else. It may run
// beside a plugin that serves.
//
// # Concurrency
//
// A walk is one goroutine's. Its steps have a bound each, and the walk as a whole ends
// with its context.
//
// # Failure
//
// A failure of the vault is a part of the report and never an error. Reasons are those
// of package keyvault, and so is most of what to mend.
//
// # Secrets
//
// A report holds names of hosts, keys and certificates, times and reasons. It never
// holds a token, a claim, the random bytes or what came of them.
package doctor
