package main

import (
	"crypto/fips140"
	"fmt"
	"runtime"
	"runtime/debug"

	"azure-kms-plugin/metrics"
)

// version and revision are stamped by the linker:
// -ldflags "-X main.version=v1.2.3 -X main.revision=<commit>".
var version, revision string

// build describes this program, from the stamp or, failing that, from what the
// Go command recorded.
func build() metrics.Build {
	b := metrics.Build{Version: version, Revision: "unknown", GoVersion: runtime.Version(), FIPS140: "off"}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" && info.Main.Version != "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
		dirty := false
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				dirty = s.Value == "true"
			}
		}
		if dirty && b.Revision != "unknown" {
			b.Revision += "-dirty"
		}
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	if revision != "" {
		b.Revision = revision
	}
	if fips140.Enabled() {
		b.FIPS140 = fips140.Version()
	}
	return b
}

func versionLine(b metrics.Build) string {
	return fmt.Sprintf("azure-kms-plugin %s (revision %s, %s, %s/%s, FIPS 140-3 %s)",
		b.Version, b.Revision, b.GoVersion, runtime.GOOS, runtime.GOARCH, b.FIPS140)
}
