// This file only marks the folder as a module of its own. The builds use
// v0.29.mod, v0.33.mod and v0.37.mod, one per version of k8s.io/apiserver.
module azure-kms-plugin/test/skew

go 1.26.0
