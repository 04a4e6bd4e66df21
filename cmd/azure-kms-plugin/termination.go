package main

import (
	"errors"
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
// that is there already is written, as kubelet makes it, and only one that is empty or has
// last words in it: when a fault keeps the flags and azure.json from being read, nothing else
// tells that the path is not that of a certificate. What goes wrong is not told: who
// could read that has the log.
func lastWords(path, text string) {
	if path == "" {
		return
	}
	// Not following links and not blocking, as anything may be at a path that was given.
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || !hasLastWords(f) || f.Truncate(0) != nil {
		return
	}
	text = strings.ToValidUTF8(text, "?")
	if len(text) > maxTermination {
		text = strings.ToValidUTF8(text[:maxTermination], "")
	}
	_, _ = f.WriteAt([]byte(text), 0)
}

// The beginnings of all last words; those of a fault are as complain writes them.
const (
	wordsOfFault = "azure-kms-plugin: "
	wordsOfStop  = "stopped as asked"
	wordsOfEnd   = "serving ended: "
)

// hasLastWords reports whether a file has nothing in it but what lastWords writes.
func hasLastWords(f io.ReaderAt) bool {
	head := make([]byte, len(wordsOfFault))
	n, err := f.ReadAt(head, 0)
	if n == 0 {
		return errors.Is(err, io.EOF)
	}
	for _, words := range []string{wordsOfFault, wordsOfStop, wordsOfEnd} {
		if strings.HasPrefix(string(head[:n]), words) {
			return true
		}
	}
	return false
}

// lastState is the state at the end, in a line.
func lastState(d *status.Document) string {
	text := wordsOfStop + "; the key was " + string(d.Phase)
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
