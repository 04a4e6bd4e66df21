package plugin_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// asThread changes the credentials of one thread only: the raw calls are not
// passed on to the others, and the thread ends with its goroutine.
func asThread(t *testing.T, uid, gid int, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		id := uintptr(gid)
		for _, call := range [][4]uintptr{
			{unix.SYS_SETGROUPS, 0, 0, 0},
			{unix.SYS_SETRESGID, id, id, id},
			{unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
		} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				t.Errorf("changing user: %v", errno)
				return
			}
		}
		f()
	}()
	<-done
}
