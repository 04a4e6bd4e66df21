package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

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

// checkFiles finds what this program would write over, and what would keep it from
// writing.
func (o options) checkFiles(cfg *keyvault.AzureConfig) (faults []string) {
	if faults := o.checkOverlap(cfg); len(faults) > 0 {
		return faults
	}
	return o.checkStatusFile()
}

// checkStatusFile finds what would keep the status file from being written. The directory
// has to be there: one that was made here because it was misspelt would be looked for in
// vain elsewhere.
func (o options) checkStatusFile() (faults []string) {
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
	case err == nil && !info.Mode().IsRegular():
		return fault("%s is not a regular file: choose another name", path)
	default:
		if err := checkDir(dir); err != nil {
			return fault("no file can be made in %s: %v; the directory must be there, and open to uid %d, gid %d", dir, err, os.Geteuid(), os.Getegid())
		}
	}
	return nil
}
