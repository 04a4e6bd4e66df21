package plugin_test

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/plugin"
)

// at puts a rig at a path of the test's choice.
func at(path string) func(*plugin.Config) {
	return func(c *plugin.Config) { c.Socket.Address = "unix://" + path }
}

// stale leaves what a killed plugin leaves.
func stale(t *testing.T, path string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
}

func inode(t *testing.T, path string) uint64 {
	fi, err := os.Lstat(path)
	require.NoError(t, err)
	return uint64(fi.Sys().(*syscall.Stat_t).Ino)
}

// S01
func TestSocket_StaleFile(t *testing.T) {
	path := socketPath(t)
	stale(t, path)
	r := serve(t, at(path))
	require.Equal(t, "ok", dialTo(t, "unix", path).status(t).Healthz)
	require.Contains(t, r.log.String(), "removed a stale socket")
}

// S02
func TestSocket_LiveOneIsNeverStolen(t *testing.T) {
	a := serve(t)
	path := a.Address().Path
	before := inode(t, path)
	c := dialTo(t, "unix", path)
	c.status(t)
	b := newRig(t, at(path), func(c *plugin.Config) { c.Keyring = &keyring{current: ref(version2)} })
	err := b.Listen()
	require.ErrorIs(t, err, plugin.ErrInUse)
	require.ErrorContains(t, err, path)
	var se *plugin.SocketError
	require.ErrorAs(t, err, &se)
	require.Equal(t, path, se.Path)
	require.Error(t, b.Run(t.Context()))
	b.Stop()
	require.Equal(t, before, inode(t, path))
	require.Equal(t, ref(version1).KeyID(), c.status(t).KeyId)
	require.Equal(t, ref(version1).KeyID(), dialTo(t, "unix", path).status(t).KeyId)
}

// A socket whose queue is full, or of another kind, is not proven stale.
func TestSocket_DoubtIsNotStale(t *testing.T) {
	t.Run("a queue that is full", func(t *testing.T) {
		path := socketPath(t)
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		require.NoError(t, err)
		t.Cleanup(func() { syscall.Close(fd) })
		require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
		require.NoError(t, syscall.Listen(fd, 0))
		for { // until the kernel takes no more
			c, err := net.Dial("unix", path)
			if err != nil {
				break
			}
			t.Cleanup(func() { c.Close() })
		}
		require.ErrorIs(t, newRig(t, at(path)).Listen(), plugin.ErrInUse)
		require.FileExists(t, path)
	})
	t.Run("datagrams", func(t *testing.T) {
		path := socketPath(t)
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		require.ErrorIs(t, newRig(t, at(path)).Listen(), plugin.ErrInUse)
		require.FileExists(t, path)
	})
}

// Of many that start at once on a stale file one wins, and keeps the path.
func TestSocket_OneWinner(t *testing.T) {
	for range 5 {
		path := socketPath(t)
		stale(t, path)
		rigs := make([]*rig, 8)
		errs := make([]error, len(rigs))
		for i := range rigs {
			rigs[i] = newRig(t, at(path))
		}
		var wg sync.WaitGroup
		for i, r := range rigs {
			wg.Go(func() { errs[i] = r.Listen() })
		}
		wg.Wait()
		winners := 0
		for i, r := range rigs {
			if errs[i] == nil {
				winners++
				require.NoError(t, r.CheckPath())
				continue
			}
			require.ErrorIs(t, errs[i], plugin.ErrInUse)
			r.Stop()
		}
		require.Equal(t, 1, winners)
		require.FileExists(t, path)
		for _, r := range rigs {
			r.Stop()
		}
		require.NoFileExists(t, path)
	}
}

// S05: see also TestParseAddress.
func TestSocket_LongestPath(t *testing.T) {
	dir := filepath.Dir(socketPath(t))
	path := filepath.Join(dir, strings.Repeat("s", 107-len(dir)-1))
	require.Len(t, path, 107)
	serve(t, at(path))
	require.Equal(t, "ok", dialTo(t, "unix", path).status(t).Healthz)

	_, err := plugin.New(plugin.Config{Keyring: newKeyring(t), Readiness: ready(always), Socket: plugin.SocketConfig{Address: "unix://" + path + "s"}})
	require.ErrorContains(t, err, path+"s has 108 bytes")
	require.ErrorContains(t, err, "107")
}

// S06
func TestSocket_WhatIsInTheWayStays(t *testing.T) {
	dir := filepath.Dir(socketPath(t))
	elsewhere := filepath.Join(dir, "elsewhere")
	require.NoError(t, os.WriteFile(elsewhere, []byte("mine"), 0o640))
	live := serve(t)
	for kind, put := range map[string]func(path string) error{
		"a regular file":  func(p string) error { return os.WriteFile(p, []byte("mine"), 0o640) },
		"a directory":     func(p string) error { return os.Mkdir(p, 0o755) },
		"a symbolic link": func(p string) error { return os.Symlink(elsewhere, p) },
		"a named pipe":    func(p string) error { return syscall.Mkfifo(p, 0o600) },
	} {
		t.Run(kind, func(t *testing.T) {
			path := socketPath(t)
			require.NoError(t, put(path))
			before, err := os.Lstat(path)
			require.NoError(t, err)
			err = newRig(t, at(path)).Listen()
			require.ErrorContains(t, err, path+" is "+kind)
			after, err := os.Lstat(path)
			require.NoError(t, err)
			require.True(t, os.SameFile(before, after))
			require.Equal(t, before.Mode(), after.Mode())
			require.Equal(t, before.ModTime(), after.ModTime())
		})
	}
	t.Run("a symbolic link to a live socket", func(t *testing.T) {
		path := socketPath(t)
		require.NoError(t, os.Symlink(live.path, path))
		require.ErrorContains(t, newRig(t, at(path)).Listen(), "symbolic link")
	})
	b, err := os.ReadFile(elsewhere)
	require.NoError(t, err)
	require.Equal(t, "mine", string(b))
}

func TestSocket_NoDirectory(t *testing.T) {
	dir := filepath.Dir(socketPath(t))
	err := newRig(t, at(dir+"/absent/k.sock")).Listen()
	require.ErrorContains(t, err, dir+"/absent, the directory")
	require.ErrorContains(t, err, "does not exist")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoDirExists(t, dir+"/absent")

	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o600))
	require.ErrorContains(t, newRig(t, at(dir+"/file/k.sock")).Listen(), "a regular file")
}

// S07b: clients come by path, so a deleted file must come back; those that are
// connected must not notice.
func TestSocket_DeletedWhileServing(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	c.status(t)
	require.NoError(t, r.CheckSocket())
	for range 2 {
		fds := descriptors(t)
		require.NoError(t, os.Remove(r.path))
		require.ErrorContains(t, r.CheckSocket(), "deleted")
		require.Eventually(t, func() bool { return r.CheckPath() == nil }, 10*time.Second, 10*time.Millisecond)
		require.LessOrEqual(t, descriptors(t), fds, "the old listener is still open")
		require.Equal(t, "ok", dialTo(t, "unix", r.path).status(t).Healthz)
		require.Equal(t, fs.FileMode(0o600), mode(t, r.path))
	}
	require.Len(t, r.Connections(), 3)
	c.status(t)
	require.Len(t, r.Connections(), 3, "the old connection was kept")
	require.Contains(t, r.log.String(), "bound the socket anew")
	r.cancel()
	require.NoError(t, <-r.done)
	require.NoFileExists(t, r.path)
}

// Somebody else's live socket at the path is left alone, and said.
func TestSocket_TakenWhileServing(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	c.status(t)
	require.NoError(t, os.Remove(r.path))
	other, err := net.Listen("unix", r.path)
	require.NoError(t, err)
	theirs := inode(t, r.path)
	require.ErrorContains(t, r.CheckSocket(), "taken the place")
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "clients cannot reach") }, 10*time.Second, 10*time.Millisecond)
	require.ErrorIs(t, r.CheckSocket(), plugin.ErrInUse)
	require.ErrorContains(t, r.CheckSocket(), r.path)
	require.Equal(t, theirs, inode(t, r.path))
	c.status(t)

	require.NoError(t, other.Close()) // removes the file
	require.Eventually(t, func() bool { return r.CheckSocket() == nil }, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, "ok", dialTo(t, "unix", r.path).status(t).Healthz)
}

// A file that is not a socket, put in the place while serving, is left as it is
// on exit too.
func TestSocket_ExitLeavesWhatIsNotOurs(t *testing.T) {
	r := serve(t)
	require.NoError(t, os.Remove(r.path))
	require.NoError(t, os.WriteFile(r.path, []byte("theirs"), 0o600))
	r.cancel()
	require.NoError(t, <-r.done)
	b, err := os.ReadFile(r.path)
	require.NoError(t, err)
	require.Equal(t, "theirs", string(b))
}

func mode(t *testing.T, path string) fs.FileMode {
	fi, err := os.Lstat(path)
	require.NoError(t, err)
	require.NotZero(t, fi.Mode()&fs.ModeSocket)
	return fi.Mode().Perm()
}

// S08: the mode is what was asked for, whatever the umask.
func TestSocket_Mode(t *testing.T) {
	for _, umask := range []int{0o077, 0o000, 0o177, 0o777} {
		for _, c := range []struct {
			asked, got fs.FileMode
			group      string
		}{
			{0, 0o600, ""},
			{0o600, 0o600, ""},
			{0o660, 0o660, ""},
			{0o770, 0o770, ""},
			{0, 0o660, fmt.Sprint(os.Getegid())},
			{0o600, 0o600, fmt.Sprint(os.Getegid())},
		} {
			t.Run(fmt.Sprintf("umask %o mode %o group %s", umask, c.asked, c.group), func(t *testing.T) {
				r := newRig(t, func(cfg *plugin.Config) { cfg.Socket.Mode, cfg.Socket.Group = c.asked, c.group })
				old := syscall.Umask(umask)
				err := r.Listen()
				syscall.Umask(old)
				require.NoError(t, err)
				defer r.Stop()
				require.Equal(t, c.got, mode(t, r.path))
			})
		}
	}
}

func TestSocketConfig_Refused(t *testing.T) {
	for says, c := range map[string]plugin.SocketConfig{
		"every user of the node":        {Mode: 0o666},
		"0602":                          {Mode: 0o602},
		"more than permissions":         {Mode: 0o600 | fs.ModeSetuid},
		"keeps this process":            {Mode: 0o060},
		`"no-such-group-here"`:          {Group: "no-such-group-here"},
		`"-1" is no group`:              {Group: "-1"},
		`"4294967295" is no group`:      {Group: "4294967295"},
		"socket group":                  {Group: "x y"},
		"listen address: \"tcp://a:1\"": {Address: "tcp://a:1"},
	} {
		_, err := plugin.New(plugin.Config{Keyring: newKeyring(t), Readiness: ready(always), Socket: c})
		require.ErrorContains(t, err, says)
	}
}

// as runs f on a thread of another user, which ends with it.
func as(t *testing.T, uid, gid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("changing users takes root")
	}
	asThread(t, uid, gid, f)
}

// S08: whoever may not even ask a socket if it is in use is told who may.
func TestSocket_NotOursToAsk(t *testing.T) {
	r := serve(t)
	require.NoError(t, os.Chmod(filepath.Dir(r.path), 0o755))
	second := newRig(t, at(r.path))
	as(t, 12345, 4711, func() {
		err := second.Listen()
		assert.ErrorContains(t, err, r.path)
		assert.ErrorContains(t, err, "uid 12345 gid 4711 may not connect to it (mode 0600, uid 0, gid ")
	})
	r.dial(t).status(t)
}

// S08: another user reaches the socket by the group, and by nothing else.
func TestSocket_Group(t *testing.T) {
	r := serve(t, func(c *plugin.Config) { c.Socket.Group = "4711" })
	require.NoError(t, os.Chmod(filepath.Dir(r.path), 0o755))
	fi, err := os.Lstat(r.path)
	require.NoError(t, err)
	if st := fi.Sys().(*syscall.Stat_t); os.Geteuid() == 0 {
		require.EqualValues(t, 4711, st.Gid)
	}
	require.Equal(t, fs.FileMode(0o660), mode(t, r.path))
	as(t, 12345, 4711, func() {
		conn, err := net.Dial("unix", r.path)
		require.NoError(t, err)
		conn.Close()
	})
	as(t, 12345, 12345, func() {
		_, err := net.Dial("unix", r.path)
		require.ErrorIs(t, err, fs.ErrPermission)
	})
}

// S08: a refusal of the kernel names who needs what where, and leaves nothing.
func TestSocket_PermissionDenied(t *testing.T) {
	r := newRig(t)
	dir := filepath.Dir(r.path)
	require.NoError(t, os.Chmod(dir, 0o755))
	as(t, 12345, 12346, func() {
		err := r.Listen()
		require.ErrorIs(t, err, fs.ErrPermission)
		for _, part := range []string{"uid 12345", "gid 12346", dir, r.path, "mode 0755", "SELinux"} {
			require.ErrorContains(t, err, part)
		}
	})
	t.Run("a group that is not ours", func(t *testing.T) {
		r := newRig(t, func(c *plugin.Config) { c.Socket.Group = "4711" })
		require.NoError(t, os.Chmod(filepath.Dir(r.path), 0o777))
		as(t, 12345, 12346, func() {
			err := r.Listen()
			require.ErrorIs(t, err, fs.ErrPermission)
			require.ErrorContains(t, err, "group 4711")
			require.ErrorContains(t, err, r.path)
		})
		require.NoFileExists(t, r.path, "Listen failed half-way")
	})
}

// An abstract socket has no permissions, so the peer is asked for.
func TestSocket_Abstract(t *testing.T) {
	address := fmt.Sprintf("unix:///@kms-test-%d", os.Getpid())
	r := serve(t, func(c *plugin.Config) { c.Socket.Address = address })
	require.NoError(t, r.CheckSocket())
	name := "@" + strings.SplitN(address, "@", 2)[1]
	require.Equal(t, "ok", dialTo(t, "unix", name).status(t).Healthz)
	require.Contains(t, r.log.String(), "no permissions")
	require.NoFileExists(t, name)

	second := newRig(t, func(c *plugin.Config) { c.Socket.Address = address })
	require.ErrorIs(t, second.Listen(), plugin.ErrInUse)
	second.Stop()
	require.Equal(t, "ok", dialTo(t, "unix", name).status(t).Healthz)

	as(t, 12345, 0, func() {
		conn, err := net.Dial("unix", name)
		require.NoError(t, err)
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, os.IsTimeout(err), "the connection is closed before a word is said")
	})
	require.Contains(t, r.log.String(), `"peer_uid":12345`)
	_, err := dialTo(t, "unix", name).Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(t, err)
}

// The file of the one that ended is not taken for a stale one's by a successor
// that already serves there.
func TestSocket_SuccessorKeepsItsFile(t *testing.T) {
	first := serve(t)
	require.NoError(t, os.Rename(first.path, first.path+".old")) // so that a second can bind
	second := serve(t, at(first.path))
	first.cancel()
	require.NoError(t, <-first.done)
	require.NoError(t, second.CheckSocket())
	require.Equal(t, "ok", dialTo(t, "unix", first.path).status(t).Healthz)
}

// No child process may keep the socket alive after us.
func TestSocket_NotInherited(t *testing.T) {
	serve(t)
	out, err := exec.Command("/bin/sh", "-c", "ls -l /proc/$$/fd | grep -c socket: || true").Output()
	require.NoError(t, err)
	require.Equal(t, "0", strings.TrimSpace(string(out)))
}

// The file is never open wider than asked, not for the instant between bind and
// chmod: somebody may be watching the directory.
func TestSocket_NeverBroaderThanAsked(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := socketPath(t)
	var seen [0o1000]bool
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			var st syscall.Stat_t
			if syscall.Lstat(path, &st) == nil {
				seen[st.Mode&0o777] = true
			}
		}
	}()
	for range 200 {
		r := newRig(t, at(path), func(c *plugin.Config) { c.Socket.Group = fmt.Sprint(os.Getegid()) })
		require.NoError(t, r.Listen())
		r.Stop()
	}
	close(stop)
	<-done
	for m, was := range seen {
		if was {
			require.Contains(t, []int{0o600, 0o660}, m, "mode %o", m)
		}
	}
}

// A directory whose lock is not to be had stops a start, but never a stop; the
// file that is left then is stale and goes with the next start.
func TestSocket_DirectoryIsLocked(t *testing.T) {
	r := serve(t)
	dir, err := os.Open(filepath.Dir(r.path))
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, syscall.Flock(int(dir.Fd()), syscall.LOCK_EX))

	err = newRig(t, at(r.path+"2")).Listen()
	require.ErrorContains(t, err, "lock")
	require.ErrorContains(t, err, dir.Name())

	r.cancel()
	require.NoError(t, <-r.done)
	require.FileExists(t, r.path)
	require.NotContains(t, r.log.String(), "cannot reach this server", "the watcher went on after the stop")

	require.NoError(t, dir.Close())
	next := newRig(t, at(r.path))
	require.NoError(t, next.Listen())
	next.Stop()
	require.NoFileExists(t, r.path)
}
