package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file that has no end, or no writer, neither holds up the start nor fills
// the memory.
func TestFiles_OddOnes(t *testing.T) {
	dir := t.TempDir()
	fifo, large := filepath.Join(dir, "fifo"), filepath.Join(dir, "large")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	require.NoError(t, os.Truncate(large, 10<<30))
	for _, flag := range []string{"--ca-file", "--config-file-path"} {
		for _, path := range []string{fifo, large, "/dev/zero", dir} {
			p := prepare(t, shortDir(t), nil, flag+"="+path).start(t)
			require.Equal(t, 64, p.exit(t), "%s=%s", flag, path)
			require.True(t, strings.HasPrefix(p.stderr.String(), "azure-kms-plugin: "+flag+": "), p.stderr.String())
			require.Contains(t, p.stderr.String(), path)
		}
	}
}
