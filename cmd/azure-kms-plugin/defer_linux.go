package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// deferAccept has the kernel keep a connection to itself until its client has said
// something, or for a second or so. One that says nothing then costs us little, and a
// request is there to be read as soon as its connection is accepted. It is a help
// only: where the kernel refuses, connections come as always.
func deferAccept(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1)
	})
}
