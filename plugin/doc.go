// Package plugin answers Kubernetes KMS v2 calls on a unix socket.
//
// Start from [New], then [Server.Listen] and [Server.Run]. Listen binds the
// socket and touches nothing else, so that kube-apiserver can connect before
// the vault has been asked anything. Run serves until its context ends.
// What a call means is decided elsewhere: a [Keyring] holds the keys, a
// [Readiness] says whether they can be used. This package owns what passes
// between them and kube-apiserver: the wire formats of the two existing
// plugins, the status codes, the socket file and the shutdown.
//
// A connection is told a key ID by Status and is answered under that same ID
// by Encrypt, whatever the keyring has moved on to in between: kube-apiserver
// throws an Encrypt answer away when the two differ. It is told no older one once
// an Encrypt was answered under it; before that, a fault of the new version takes it
// back, so that its caller goes on with the seed that it has.
//
// The version string of Status is "v2beta1" unless configured otherwise. A
// running kube-apiserver turns unhealthy when it changes, and the existing
// plugins say v2beta1.
//
// # The socket
//
// A file socket is created with its final mode or less, never more, whatever
// the umask, and is never accessible to others. A stale file is removed after
// nobody answered on it; a live socket, and anything that is not a socket, is
// left alone. The file is removed on exit if it is still ours, and bound anew
// within two seconds if someone deletes it; connections that are open keep
// working meanwhile.
//
// An abstract socket (unix:///@name) has no permissions: every process in the
// network namespace can connect. So only root and the uid that this process
// runs as are served on it.
//
// # Concurrency
//
// All methods of [Server] may be called from any goroutine. Calls are served
// in parallel; Status never waits for an Encrypt or Decrypt. No goroutine
// outlives Run, except for calls into a Keyring or Readiness that ignore their
// context: Run waits two seconds for those and then reports them.
//
// # Failure
//
// Every failed call is a gRPC error whose text is "<Reason>: <what and what to
// mend>" and whose code comes from the reason: see [CodeFor]. A failure is
// never a health text beside a key ID, because kube-apiserver would go on
// writing under it. Bad input is InvalidArgument, and the keyring is not
// called. An empty plaintext is bad input: Key Vault cannot encrypt nothing.
// A panic costs the call that caused it and nothing else.
//
// # Secrets
//
// Plaintexts and ciphertexts are passed on, and neither kept, logged, nor put
// in an error; a panic is logged as its type and the functions it passed
// through. They are not wiped: gRPC and the vault's client hold copies that
// this package cannot reach.
package plugin
