package plugin

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel who opened the connection.
func peerOf(conn net.Conn) Peer {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return Peer{}
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return Peer{}
	}
	var cred *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil || err != nil {
		return Peer{}
	}
	return Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid, Known: true}
}
