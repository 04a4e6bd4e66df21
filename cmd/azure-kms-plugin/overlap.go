package main

import (
	"fmt"
	"os"
	"path/filepath"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

// A place is a file that a flag, a variable or azure.json leads to.
type place struct {
	owner string // a flag, a variable or a field of azure.json
	path  string
}

// A target is a file that this program writes.
type target struct {
	flag string
	what string // what is written there
	path string
	way  string // the name that it has while it is written; empty for path itself
}

// read are the files that this program reads and others write.
func (o options) read(cfg *keyvault.AzureConfig) []place {
	all := []place{
		{"--config-file-path", o.configFile},
		{"--ca-file", o.caFile},
		{"AZURE_FEDERATED_TOKEN_FILE", workloadIdentity().TokenFile},
		{"SSL_CERT_FILE", os.Getenv("SSL_CERT_FILE")},
	}
	if cfg != nil {
		for _, f := range cfg.Files() {
			all = append(all, place{f.Field + " of azure.json", f.Path})
		}
	}
	return all
}

// written are the files that this program writes, the dearest first: of two that are
// one, the later has to go elsewhere. cfg is nil if azure.json cannot be read.
func (o options) written(cfg *keyvault.AzureConfig) (all []target) {
	replaced := func(flag, what, path string) {
		if path != "" {
			all = append(all, target{flag, what, path, health.TemporaryPath(path)})
		}
	}
	if cfg != nil {
		replaced("--state-dir", "the state", o.memoryPath(cfg.Cloud()))
	}
	if o.terminationLog != "" {
		all = append(all, target{flag: "--termination-log", what: "the last words", path: o.terminationLog})
	}
	replaced("--status-file", "the status", o.statusFile)
	return all
}

// checkOverlap finds the files that this program would write over something else that
// it has to do with, under whatever name: the secret that signs in would be gone.
func (o options) checkOverlap(cfg *keyvault.AzureConfig) (faults []string) {
	taken := o.read(cfg)
	if !o.address.Abstract() {
		taken = append(taken, place{"--listen-addr", o.address.Path})
	}
	for _, t := range o.written(cfg) {
		if fault := t.over(taken); fault != "" {
			faults = append(faults, fault)
		}
		taken = append(taken, place{t.flag, t.path}, place{t.flag, t.way})
	}
	return faults
}

// over says what t would destroy; empty for nothing.
func (t target) over(taken []place) string {
	for _, p := range taken {
		switch {
		case p.path == "":
		case sameFile(t.path, p.path):
			return fmt.Sprintf("%s: %s is another file of this plugin, that of %s: give %s a file of its own", t.flag, t.path, p.owner, t.what)
		case t.way != "" && sameFile(t.way, p.path):
			return fmt.Sprintf("%s: %s, by way of which %s is written, is another file of this plugin, that of %s: give %s another name", t.flag, t.way, t.path, p.owner, t.what)
		}
	}
	return ""
}

// memoryPath is the state file; empty for none.
func (o options) memoryPath(cloud keyvault.Cloud) string {
	if dir := o.memoryDir(); dir != "" {
		return health.MemoryPath(dir, o.address.String(), o.key(cloud))
	}
	return ""
}

// sameFile reports whether two paths lead to one file, which need not be there: one
// that comes later would be hit too.
func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	if errA == nil && errB == nil {
		return os.SameFile(infoA, infoB)
	}
	dirA, errA := filepath.EvalSymlinks(filepath.Dir(a))
	dirB, errB := filepath.EvalSymlinks(filepath.Dir(b))
	return errA == nil && errB == nil && filepath.Join(dirA, filepath.Base(a)) == filepath.Join(dirB, filepath.Base(b))
}
