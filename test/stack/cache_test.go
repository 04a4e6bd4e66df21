package stack_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// hello is a module with one program that builds in a moment.
func hello(t *testing.T) stack.Build {
	t.Helper()
	// Go's own cache moves with the variable too; it must stay, or each
	// test would build the standard library.
	goCache, err := exec.Command("go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	t.Setenv("GOCACHE", strings.TrimSpace(string(goCache)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module hello\n\ngo 1.26\n")
	write(t, filepath.Join(dir, "hello", "main.go"), "package main\n\nfunc main() { println(\"hello\") }\n")
	return stack.Build{
		Name: "hello", Dir: dir, Sources: []string{"go.mod", "hello/main.go"},
		Packages: []string{"./hello"}, About: "hello",
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

func TestBuild_IsKept(t *testing.T) {
	b := hello(t)
	var news bytes.Buffer
	first, err := b.Run(t.Context(), &news)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(first, "hello"))
	require.Contains(t, news.String(), "building hello")

	news.Reset()
	again, err := b.Run(t.Context(), &news)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Empty(t, news.String())

	write(t, filepath.Join(b.Dir, "hello", "main.go"), "package main\n\nfunc main() { println(\"hi\") }\n")
	changed, err := b.Run(t.Context(), &news)
	require.NoError(t, err)
	require.NotEqual(t, first, changed, "other sources, other programs")
}

func TestBuild_FailureLeavesNothing(t *testing.T) {
	b := hello(t)
	write(t, filepath.Join(b.Dir, "hello", "main.go"), "package main\n\nfunc main() { undefined() }\n")
	_, err := b.Run(t.Context(), &bytes.Buffer{})
	require.ErrorContains(t, err, "building hello")
	require.ErrorContains(t, err, "undefined: undefined")
	left, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "azure-kms-plugin", "*hello*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBuild_OnceForAll(t *testing.T) {
	b := hello(t)
	var wait sync.WaitGroup
	var news [3]bytes.Buffer
	for i := range news {
		wait.Go(func() {
			if _, err := b.Run(t.Context(), &news[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	all := news[0].String() + news[1].String() + news[2].String()
	require.Equal(t, 1, bytes.Count([]byte(all), []byte("building hello")), all)
}

func TestBuild_WaitsForTheOther(t *testing.T) {
	b := hello(t)
	cache := filepath.Join(os.Getenv("XDG_CACHE_HOME"), "azure-kms-plugin")
	require.NoError(t, os.MkdirAll(cache, 0o755))
	other, err := os.Create(filepath.Join(cache, "build.lock"))
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, syscall.Flock(int(other.Fd()), syscall.LOCK_EX))

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var news bytes.Buffer
	_, err = b.Run(ctx, &news)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Contains(t, news.String(), "waiting for another build")

	require.NoError(t, other.Close()) // which is also what the end of its process does
	_, err = b.Run(t.Context(), &news)
	require.NoError(t, err)
}

func TestCacheDir(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/somewhere")
	dir, err := stack.CacheDir()
	require.NoError(t, err)
	require.Equal(t, "/somewhere/azure-kms-plugin", dir)
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "/home/me")
	dir, err = stack.CacheDir()
	require.NoError(t, err)
	require.Equal(t, "/home/me/.cache/azure-kms-plugin", dir)
}
