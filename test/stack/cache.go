package stack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A Build makes programs that take too long to build each time. They are kept
// in the cache folder under a name that changes with their sources.
type Build struct {
	Name     string   // of the folder; a hash is appended
	Dir      string   // where go build runs
	Modfile  string   // relative to Dir; empty means go.mod
	Sources  []string // files relative to Dir whose change asks for a new build
	Packages []string // what to build; the program has the package's last name
	LDFlags  string
	About    string // told before a build begins
}

// CacheDir is the folder for built programs:
// ${XDG_CACHE_HOME:-$HOME/.cache}/azure-kms-plugin.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if runtime.GOOS == "darwin" { // the same place on every system
		if base = os.Getenv("XDG_CACHE_HOME"); base == "" {
			base = filepath.Join(os.Getenv("HOME"), ".cache")
			err = nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("finding the cache folder: set XDG_CACHE_HOME or HOME: %w", err)
	}
	return filepath.Join(base, "azure-kms-plugin"), nil
}

// Run returns the folder that holds the programs, and builds them first when
// it is not there. Two builds never run at the same time, in whatever
// processes: each would take all of the machine, and a second build of the
// same programs finds those of the first. news is told what takes long.
func (b Build) Run(ctx context.Context, news io.Writer) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	hash, err := b.hash()
	if err != nil {
		return "", err
	}
	final := filepath.Join(cache, b.Name+"-"+hash)
	if exists(final) {
		return final, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(cache, "build.lock"), news)
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(final) { // built by the process that had the lock
		return final, nil
	}
	temp, err := os.MkdirTemp(cache, ".building-")
	if err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	defer os.RemoveAll(temp)
	fmt.Fprintf(news, "building %s\n  into %s\n", b.About, final)
	began := time.Now()
	if err := b.build(ctx, temp); err != nil {
		return "", err
	}
	// A folder under its final name is complete, whenever the machine stops.
	if err := os.Rename(temp, final); err != nil {
		return "", fmt.Errorf("keeping the built programs: %w", err)
	}
	fmt.Fprintf(news, "  built in %v\n", time.Since(began).Round(time.Second))
	return final, nil
}

func (b Build) build(ctx context.Context, out string) error {
	if err := os.Chmod(out, 0o755); err != nil {
		return err
	}
	args := []string{"build", "-trimpath", "-ldflags=" + b.LDFlags, "-o", out + string(filepath.Separator)}
	if b.Modfile != "" {
		args = append(args, "-modfile="+b.Modfile)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, b.Packages...)...)
	cmd.Dir = b.Dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", b.About, err, output)
	}
	return nil
}

// hash covers all that decides what the build makes: the sources (go.sum
// stands for those of the dependencies), the toolchain and the platform.
func (b Build) hash() (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOOS, runtime.GOARCH, b.LDFlags, b.Modfile, b.Packages)
	for _, name := range b.Sources {
		content, err := os.ReadFile(filepath.Join(b.Dir, name))
		if err != nil {
			return "", fmt.Errorf("reading the sources of %s: %w", b.About, err)
		}
		fmt.Fprintln(h, name, len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// lock waits until this process alone holds path. The kernel lets go of it
// when the process ends, however it ends.
func lock(ctx context.Context, path string, news io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("locking the cache folder: %w", err)
	}
	told := false
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !told {
			fmt.Fprintf(news, "waiting for another build (%s)\n", path)
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for another build: %w", context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Root is the root of the source tree, found upwards from the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(content), "module azure-kms-plugin\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("finding the source tree: run this inside of it")
		}
		dir = parent
	}
}
