//go:build !linux

package stack

import "syscall"

// childAttr leaves the child in the parent's process group: without the
// kernel's help, the terminal's signal is what ends it with the parent.
func childAttr() *syscall.SysProcAttr { return nil }
