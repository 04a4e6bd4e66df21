package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

// readStatus reads where the state goes besides the endpoints.
func (o *options) readStatus(r *reader) {
	if s := r.text("status-file"); s != "" {
		o.statusFile = s
		if !filepath.IsAbs(s) {
			r.fault("status-file", "%q does not begin with a slash: the directory that it would be in is not the one you are in now", s)
			o.statusFile = ""
		}
	}
	if v := r.values["termination-log"]; len(v) > 0 && clean(v[len(v)-1]) == "" {
		return // has a default, so empty means something: nowhere
	}
	o.terminationLog = r.text("termination-log")
}

// checkStatusFile finds what would keep the status file from being written, and what
// it would destroy. The directory has to be there: one that was made here because it
// was misspelt would be looked for in vain elsewhere.
func (o options) checkStatusFile(cfg *keyvault.AzureConfig) (faults []string) {
	path := o.statusFile
	if path == "" {
		return nil
	}
	fault := func(format string, args ...any) []string {
		return []string{"--status-file: " + fmt.Sprintf(format, args...)}
	}
	info, err := os.Lstat(path)
	switch dir := filepath.Dir(path); {
	case strings.HasSuffix(path, "/") || err == nil && info.IsDir():
		return fault("%s is a directory: name a file in it", path)
	case o.isOther(path, cfg):
		return fault("%s is another file of this plugin: give the status a file of its own", path)
	case err == nil && !info.Mode().IsRegular():
		return fault("%s is not a regular file: choose another name", path)
	default:
		if err := checkDir(dir); err != nil {
			return fault("no file can be made in %s: %v; the directory must be there, and open to uid %d, gid %d", dir, err, os.Geteuid(), os.Getegid())
		}
	}
	return nil
}

// isOther reports whether path is a file that the plugin uses for something else, by
// whatever name.
func (o options) isOther(path string, cfg *keyvault.AzureConfig) bool {
	others := []string{o.configFile, o.caFile, o.terminationLog}
	if !o.address.Abstract() {
		others = append(others, o.address.Path)
	}
	if cfg != nil {
		others = append(others, o.memoryPath(cfg.Cloud()))
	}
	for _, other := range others {
		if other != "" && sameFile(path, other) {
			return true
		}
	}
	return false
}

// memoryPath is the state file; empty for none.
func (o options) memoryPath(cloud keyvault.Cloud) string {
	if dir := o.memoryDir(); dir != "" {
		return health.MemoryPath(dir, o.address.String(), o.key(cloud))
	}
	return ""
}

// sameFile reports whether two paths lead to one file, which need not be there.
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
