package keyvault

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setSocketOptions makes a dead connection known after unackedTimeout. It is an
// improvement, not a condition: a kernel that refuses it serves all the same.
func setSocketOptions(_, _ string, c syscall.RawConn) error {
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds()))
	})
	return nil
}
