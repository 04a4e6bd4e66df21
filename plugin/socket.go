package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// A SocketError says why the socket cannot be had, or no longer leads here.
type SocketError struct {
	Path string
	// Text says what was found and what to mend. It names the path.
	Text string
	Err  error // cause, for errors.Is; not part of the text
}

func (e *SocketError) Error() string { return e.Text }
func (e *SocketError) Unwrap() error { return e.Err }

// ErrInUse is the cause of a SocketError for a path on which someone else serves.
var ErrInUse = errors.New("socket in use")

// A socket is a place to listen at.
type socket struct {
	addr Address
	mode fs.FileMode
	gid  int // -1: leave
	log  *zap.Logger
}

// A bound is a listener and the file that leads to it.
type bound struct {
	*net.UnixListener
	sock *socket
	id   fileID // zero for an abstract socket
	pin  *os.File

	once   sync.Once
	closed atomic.Bool
	err    error
}

// listen binds the socket. It never takes the place of anything but a socket
// file on which nobody answers. The end of ctx ends the wait for the lock.
func (s *socket) listen(ctx context.Context) (*bound, error) {
	if s.addr.Abstract() {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", s.addr.Path)
		if err != nil {
			return nil, s.explain("binding", err)
		}
		return &bound{UnixListener: l.(*net.UnixListener), sock: s}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.clear(); err != nil {
		return nil, err
	}
	return s.bind()
}

// lock keeps other plugins out of the directory while this one looks at what
// is there and acts on it. The directory must exist: one that is missing is a
// mount that is missing. It is tried at least once, and until ctx ends.
func (s *socket) lock(ctx context.Context) (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(s.addr.Path))
	if err != nil {
		return nil, s.explain("opening the directory of", err)
	}
	for {
		err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return func() { dir.Close() }, nil
		case errors.Is(err, syscall.EINTR):
		case !errors.Is(err, syscall.EWOULDBLOCK):
			// Some network file systems have no locks. Bind still refuses to
			// share the path; only the removal of a stale file is unguarded.
			s.log.Warn("cannot lock the socket's directory", zap.String("path", s.addr.Path), zap.Error(err))
			return func() { dir.Close() }, nil
		case ctx.Err() != nil:
			dir.Close()
			return nil, &SocketError{
				Path: s.addr.Path, Err: err,
				Text: fmt.Sprintf("another process holds the lock of %s, the directory of the socket %s: is a second plugin starting there?", filepath.Dir(s.addr.Path), s.addr.Path),
			}
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
		}
	}
}

const (
	lockWait  = 2 * time.Second
	leaveWait = 500 * time.Millisecond // for the lock, when stopping
	lockPoll  = 10 * time.Millisecond
	probeWait = time.Second
)

// clear makes way for bind: it removes a stale socket and refuses anything else.
func (s *socket) clear() error {
	fi, err := os.Lstat(s.addr.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return s.explain("looking at", err)
	case fi.Mode()&fs.ModeSocket == 0:
		return &SocketError{
			Path: s.addr.Path, Err: fs.ErrExist,
			Text: fmt.Sprintf("%s is %s, not a socket, and is left as it is: move it away or listen elsewhere", s.addr.Path, kindOf(fi.Mode())),
		}
	}
	conn, err := net.DialTimeout("unix", s.addr.Path, probeWait)
	switch {
	case err == nil:
		conn.Close()
		return s.inUse(ErrInUse)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		// Its queue may be full, or it is not ours to ask. Not proven stale.
		return s.inUse(errors.Join(ErrInUse, err))
	}
	if now, err := os.Lstat(s.addr.Path); err != nil || !os.SameFile(fi, now) {
		return s.inUse(ErrInUse) // changed hands while we looked, by someone who takes no lock
	}
	if err := syscall.Unlink(s.addr.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.explain("removing the stale", err)
	}
	s.log.Info("removed a stale socket: nobody answered on it", zap.String("path", s.addr.Path))
	return nil
}

func (s *socket) inUse(cause error) error {
	text := fmt.Sprintf("another process serves on the socket %s; it is left alone: stop that process or listen elsewhere", s.addr.Path)
	if errno, ok := errors.AsType[syscall.Errno](cause); ok {
		text = fmt.Sprintf("cannot tell whether another process serves on the socket %s (%v); it is left alone: "+
			"remove it if nothing does, or listen elsewhere", s.addr.Path, errno)
		if fi, err := os.Lstat(s.addr.Path); err == nil && errors.Is(errno, fs.ErrPermission) {
			text += fmt.Sprintf("; uid %d gid %d may not connect to it%s", os.Geteuid(), os.Getegid(), accessOf(fi))
		}
	}
	return &SocketError{Path: s.addr.Path, Err: cause, Text: text}
}

// bind creates the socket file. Until the group is right it is the owner's
// alone, from its first instant on: on Linux bind gives the file the mode that
// the descriptor has, less the umask. What the umask took comes back at the end.
func (s *socket) bind() (*bound, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if ctlErr := raw.Control(func(fd uintptr) { err = narrow(fd, s.mode&0o700) }); ctlErr != nil {
			return ctlErr
		}
		return err
	}}
	l, err := config.Listen(context.Background(), "unix", s.addr.Path)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, s.inUse(ErrInUse)
		}
		return nil, s.explain("binding", err)
	}
	b := &bound{UnixListener: l.(*net.UnixListener), sock: s}
	b.SetUnlinkOnClose(false)
	if err := b.adorn(); err != nil {
		b.remove()
		b.closeFiles()
		return nil, err
	}
	return b, nil
}

// adorn takes hold of the file and gives it its group and mode.
func (b *bound) adorn() error {
	s := b.sock
	var err error
	if b.pin, b.id, err = pinFile(s.addr.Path); err != nil {
		return s.explain("looking at", err)
	}
	if s.gid >= 0 {
		if err := os.Lchown(s.addr.Path, -1, s.gid); err != nil {
			return s.explain(fmt.Sprintf("giving to group %d", s.gid), err)
		}
	}
	if err := chmodPinned(b.pin, s.addr.Path, s.mode); err != nil {
		return s.explain(fmt.Sprintf("setting mode %#o on", s.mode), err)
	}
	return nil
}

// leadsHere reports why a connection to the path would not arrive here. The
// cause is fs.ErrNotExist if nothing is at the path.
func (b *bound) leadsHere() error {
	path := b.sock.addr.Path
	if b.closed.Load() {
		return &SocketError{Path: path, Err: fs.ErrNotExist, Text: fmt.Sprintf("nobody listens on the socket %s", path)}
	}
	if b.sock.addr.Abstract() {
		return nil
	}
	switch id, err := idOf(path); {
	case errors.Is(err, fs.ErrNotExist):
		return &SocketError{Path: path, Err: fs.ErrNotExist, Text: fmt.Sprintf("the socket %s was deleted", path)}
	case err != nil:
		return b.sock.explain("looking at", err)
	case id != b.id:
		return &SocketError{Path: path, Err: fs.ErrExist, Text: fmt.Sprintf("something else has taken the place of the socket %s", path)}
	}
	return nil
}

// Close stops listening and removes the file if it is still ours.
func (b *bound) Close() error {
	b.once.Do(func() {
		if !b.sock.addr.Abstract() {
			// Without the lock another plugin could bind between the look and
			// the removal. A file that is left behind is merely stale.
			ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
			defer cancel()
			if unlock, err := b.sock.lock(ctx); err == nil {
				b.remove()
				unlock()
			}
		}
		b.err = b.closeFiles()
		b.closed.Store(true)
	})
	return b.err
}

func (b *bound) remove() {
	if b.pin != nil && b.leadsHere() == nil {
		syscall.Unlink(b.sock.addr.Path)
	}
}

func (b *bound) closeFiles() error {
	err := b.UnixListener.Close()
	if b.pin != nil {
		b.pin.Close()
	}
	return err
}

// A fileID names a file for as long as it exists.
type fileID struct{ dev, ino uint64 }

// idOf identifies the socket at path; anything else there has no ID.
func idOf(path string) (fileID, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return fileID{}, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || fi.Mode()&fs.ModeSocket == 0 {
		return fileID{}, nil
	}
	return fileID{uint64(st.Dev), uint64(st.Ino)}, nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "a regular file"
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	}
	return "a device"
}

// accessOf says who may use a file.
func accessOf(fi fs.FileInfo) string {
	text := fmt.Sprintf(" (mode %#o", fi.Mode().Perm())
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		text += fmt.Sprintf(", uid %d, gid %d", st.Uid, st.Gid)
	}
	return text + ")"
}

// explain makes an error of the system one that says what to mend.
func (s *socket) explain(doing string, err error) error {
	dir := filepath.Dir(s.addr.Path)
	reason := err
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		reason = errno
	}
	text := fmt.Sprintf("%s the socket %s: %v", doing, s.addr.Path, reason)
	fi, statErr := os.Stat(dir)
	switch {
	case s.addr.Abstract():
		if errors.Is(err, syscall.EADDRINUSE) {
			return s.inUse(ErrInUse)
		}
	case errors.Is(statErr, fs.ErrNotExist):
		text = fmt.Sprintf("%s, the directory of the socket %s, does not exist: create it or mount it", dir, s.addr.Path)
	case statErr == nil && !fi.IsDir():
		text = fmt.Sprintf("%s, the directory of the socket %s, is %s", dir, s.addr.Path, kindOf(fi.Mode()))
	case errors.Is(err, fs.ErrPermission):
		text += fmt.Sprintf(": uid %d gid %d needs read, write and search permission on the directory %s", os.Geteuid(), os.Getegid(), dir)
		if statErr == nil {
			text += accessOf(fi)
		}
		if s.gid >= 0 {
			text += fmt.Sprintf(" and must be in group %d", s.gid)
		}
		text += "; if it has those, look for a denial of SELinux or AppArmor"
	}
	return &SocketError{Path: s.addr.Path, Err: err, Text: text}
}
