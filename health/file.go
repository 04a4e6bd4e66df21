package health

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// TemporaryPath is the name that what replaces path has while it is written. Whatever is
// there is removed.
func TemporaryPath(path string) string { return path + ".new" }

// replaceFile replaces path by data in one step that survives a power cut. The mode
// is exact, whatever the umask.
func replaceFile(path string, data []byte, mode fs.FileMode) (err error) {
	tmp := TemporaryPath(path)
	// A leftover of a crash is ours to replace; a link is not ours to follow.
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode&0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(tmp)
		}
	}()
	// A umask may have taken what a reader needs.
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
