package stack

import "syscall"

// childAttr gives the child a process group of its own, so that Ctrl-C in the
// terminal reaches only the parent, which stops its children in order; and has
// the kernel kill it when the parent is gone.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
