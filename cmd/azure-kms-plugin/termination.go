package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"azure-kms-plugin/health/status"
)

// maxTermination is as much as kubelet reads of a container's last words.
const maxTermination = 4096

// lastWords leaves text where kubelet looks for a container's last words: in "kubectl
// describe" and in the pod's status they are there when the log is not. Only a file
// that is there already is written, as kubelet makes it; elsewhere there is nothing to
// tell. What goes wrong is not told either: who could read that has the log.
func lastWords(path, text string) {
	if path == "" {
		return
	}
	// Not following links and not blocking, as anything may be at a path that was given.
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || f.Truncate(0) != nil {
		return
	}
	text = strings.ToValidUTF8(text, "?")
	if len(text) > maxTermination {
		text = strings.ToValidUTF8(text[:maxTermination], "")
	}
	_, _ = io.WriteString(f, text)
}

// lastState is the state at the end, in a line.
func lastState(d *status.Document) string {
	text := "stopped as asked; the key was " + string(d.Phase)
	if d.Failure != nil {
		text += " (" + d.Failure.Reason + ")"
	}
	version := "none"
	for _, k := range d.Keys {
		if k.Role == status.RoleWrite {
			version = k.Version
		}
	}
	return fmt.Sprintf("%s, version that writes: %s\n", text, version)
}
