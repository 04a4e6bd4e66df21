//go:build !linux

package plugin

import (
	"io/fs"
	"os"
	"path/filepath"
)

// pinFile identifies the file at path. Without O_PATH the inode cannot be kept,
// so the directory is opened in its place.
func pinFile(path string) (*os.File, fileID, error) {
	id, err := idOf(path)
	if err != nil {
		return nil, fileID{}, err
	}
	dir, err := os.Open(filepath.Dir(path))
	return dir, id, err
}

func chmodPinned(_ *os.File, path string, mode fs.FileMode) error { return os.Chmod(path, mode) }

// narrow does nothing: only Linux takes the mode of a file from the descriptor.
// Until chmodPinned the umask decides.
func narrow(uintptr, fs.FileMode) error { return nil }
