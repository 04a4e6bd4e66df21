// Package stack starts the real pieces that the plugin lives among, as child
// processes on the loopback interface: kube-apiserver, etcd and the plugin
// itself. The demo, the end-to-end tests and the benchmark are built on it.
//
// Begin with [Kube], which finds or builds the two Kubernetes binaries, and
// with [NewEtcd], [NewPlugin] and [NewAPIServer]. Each of these three is
// described once and may then be started and stopped any number of times under
// the same addresses, which is what a restart in the field looks like.
//
// # Concurrency
//
// A piece is started and stopped by one goroutine. A [Process] may be watched,
// signalled and stopped by any number of them.
//
// # Failure
//
// Starting a piece waits until it serves. An error tells which piece, what was
// waited for, and the end of its log. No child outlives its parent: a piece is
// stopped by Stop, and killed by the kernel when the parent dies without it.
//
// # Secrets
//
// Keys, certificates and tokens are made for one run in the caller's
// directory. They protect nothing.
package stack
