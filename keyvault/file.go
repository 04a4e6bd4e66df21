package keyvault

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// readFile reads a small file. A refusal names who was refused and by which
// mode, since the user of an image and the owner of a node's file seldom meet. It
// looks at what it has opened, and never waits for a pipe: the path may lead
// elsewhere a moment later.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, notOpened(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", path, withoutPath(err))
	case !info.Mode().IsRegular():
		return nil, notRegular(path)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s has %d bytes: more than %d is not what this file is for", path, info.Size(), limit)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", path, withoutPath(err))
	case int64(len(data)) > limit:
		return nil, fmt.Errorf("%s has more than %d bytes: that is not what this file is for", path, limit)
	case len(data) == 0:
		return nil, fmt.Errorf("%s: empty file", path)
	}
	return data, nil
}

// notOpened says why a file cannot be opened.
func notOpened(path string, cause error) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: a directory on the way to it may not be entered by uid %d, gid %d: %w", path, os.Getuid(), os.Getgid(), os.ErrPermission)
	case err == nil && !info.Mode().IsRegular():
		return notRegular(path)
	case err == nil && errors.Is(cause, os.ErrPermission):
		return fmt.Errorf("%s may not be read by uid %d, gid %d: its mode is %#o%s: %w", path, os.Getuid(), os.Getgid(), info.Mode().Perm(), ownerOf(info), os.ErrPermission)
	}
	return fmt.Errorf("reading %s: %w", path, withoutPath(cause))
}

func notRegular(path string) error { return fmt.Errorf("%s is not a regular file", path) }

// withoutPath drops the path that the os package repeats.
func withoutPath(err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err
	}
	return err
}
