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
//
// The tests whose names begin with TestOutage have the vault, the key or the network
// fail. Each records second by second what kube-apiserver and the plugin showed, as
// bin/e2e/*.csv. `make e2e-long` runs them with the times of the field: outages of ten
// minutes and the default denial grace.
package e2e
