package plugin

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// pinFile identifies the file at path and keeps its inode, so that no other
// file can get the same ID while this process is looking for it.
func pinFile(path string) (*os.File, fileID, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fileID{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fileID{}, err
	}
	return os.NewFile(uintptr(fd), path), fileID{uint64(st.Dev), uint64(st.Ino)}, nil
}

// chmodPinned changes the mode of the pinned file and of no other, whatever the
// path now leads to, and only if it must: /proc may be missing.
func chmodPinned(pin *os.File, _ string, mode fs.FileMode) error {
	fi, err := pin.Stat()
	if err != nil || fi.Mode().Perm() == mode {
		return err
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", pin.Fd()), mode)
}

// narrow sets the mode that bind gives to the socket's file, less the umask.
func narrow(fd uintptr, mode fs.FileMode) error { return unix.Fchmod(int(fd), uint32(mode)) }
