package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

// TestVersionSkew lets the encryption stacks of three Kubernetes releases
// write through one plugin, and each read in a fresh process what all wrote.
func TestVersionSkew(t *testing.T) {
	const count = 50
	versions := []string{"0.29", "0.33", "0.37"}
	dir := filepath.Join(programs.root, "test", "skew")
	bin := map[string]string{}
	for _, v := range versions {
		out, err := stack.Build{
			Name: "skew-" + v, Dir: dir, Modfile: "v" + v + ".mod",
			Sources:  []string{"main.go", "v" + v + ".mod", "v" + v + ".sum"},
			Packages: []string{"."}, LDFlags: "-s -w",
			About: "the encryption stack of k8s.io/apiserver " + v + " (about two minutes, only this once)",
		}.Run(t.Context(), os.Stderr)
		require.NoError(t, err)
		bin[v] = filepath.Join(out, "skew")
	}

	l := newLab(t)
	plugin := l.newPlugin(l.dir, l.version, nil)
	require.NoError(t, plugin.Start(t.Context()))
	config := filepath.Join(l.dir, "encryption.yaml")
	require.NoError(t, stack.WriteEncryptionConfig(config, []string{"secrets"},
		stack.Provider{Name: "azure-skew", Endpoint: plugin.Endpoint, Timeout: 3 * time.Second}))

	run := func(v string, in []byte, args ...string) []byte {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), bin[v], args...)
		cmd.Env = []string{}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &stdout, &stderr
		require.NoError(t, cmd.Run(), "%s: %s", v, stderr.String())
		return stdout.Bytes()
	}
	var all []byte
	for _, v := range versions {
		began := time.Now()
		written := run(v, nil, "write", "-config", config, "-from", v, "-count", fmt.Sprint(count))
		report.took(t.Name(), "values written by k8s.io/apiserver "+v, count, time.Since(began))
		for line := range bytes.Lines(written) {
			var r struct{ Stored []byte }
			require.NoError(t, json.Unmarshal(line, &r))
			stored, err := stack.ParseStored(r.Stored)
			require.NoError(t, err)
			require.Equal(t, l.keyID(), stored.KeyID)
		}
		all = append(all, written...)
	}
	for _, v := range versions {
		began := time.Now()
		var got map[string]int
		require.NoError(t, json.Unmarshal(run(v, all, "read", "-config", config), &got))
		require.Equal(t, map[string]int{"0.29": count, "0.33": count, "0.37": count}, got, "read by %s", v)
		report.took(t.Name(), "values of all three read by k8s.io/apiserver "+v, count*len(versions), time.Since(began))
	}
}
