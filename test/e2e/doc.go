// Package e2e holds the tests that run the plugin under the real
// kube-apiserver and etcd, with the arguments that HyperShift gives it, and
// under the encryption stacks of older Kubernetes releases.
//
// They are run by `make e2e`, which builds the plugin first; kube-apiserver
// and etcd are built from their modules once and kept in the cache folder.
// `go test -short` skips them. After the tests comes a table of what was done
// and how long it took.
package e2e
