// Package standin stands in for the two existing plugins for Key Vault:
// Azure/kubernetes-kms v0.11.0 and OpenShift's fork of it. The tests exchange
// them for this project's plugin, and back, under a running control plane.
//
// A [Plugin] writes what the plugin that it stands for writes, reads nothing
// but that, and refuses the rest on the same grounds and in the same order:
// no annotations, a key ID other than its own, an algorithm or a format
// version other than its own. Like both, it takes no notice of annotations
// that it does not know, and answers Status by an encrypt and a decrypt. Its
// tests hold it against what the two were recorded to write. It is stricter
// than they are in one respect: base64url text has only one spelling.
//
// # Concurrency
//
// A Plugin is started and stopped by one goroutine; it serves any number.
//
// # Failure
//
// What it refuses and what the vault refuses is a gRPC error with the code
// Unknown, as the existing plugins have it.
//
// # Secrets
//
// It runs against the emulated vault only, so that it knows none.
package standin
