// Package e2e holds the tests that run the plugin under the real
// kube-apiserver and etcd, with the arguments that HyperShift gives it, under
// the encryption stacks of older Kubernetes releases, and in a control plane of
// three nodes, where it takes the place of the existing plugins and gives it
// back. Those are stood in for by package standin.
//
// They are run by `make e2e`, which builds the plugin first; kube-apiserver
// and etcd are built from their modules once and kept in the cache folder.
// `go test -short` skips them. After the tests comes a table of what was done
// and how long it took.
package e2e
