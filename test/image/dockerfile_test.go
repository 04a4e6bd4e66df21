package image_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/image"
)

// The Dockerfile cannot be built without an engine, so what must agree with
// "make image" is held by reading it.
func TestDockerfile_AgreesWithTheImage(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(moduleRoot, "Dockerfile"))
	require.NoError(t, err)
	stages := instructions(string(data))
	require.Len(t, stages, 2)

	first, last := stages[0], stages[1]
	goMod, err := os.ReadFile(filepath.Join(moduleRoot, "go.mod"))
	require.NoError(t, err)
	minor := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(goMod)
	require.Regexp(t, `golang:`+regexp.QuoteMeta(string(minor[1]))+` AS build$`, first["FROM"])
	makefile, err := os.ReadFile(filepath.Join(moduleRoot, "Makefile"))
	require.NoError(t, err)
	for _, flag := range []string{"CGO_ENABLED=0", "-tags grpcnotrace", "-trimpath", "-buildvcs=false", "-s -w -X main.version="} {
		require.Contains(t, first["RUN"], flag)
		require.Contains(t, string(makefile), flag)
	}

	// The tests' module is not copied, so "go mod download" would look for it in vain.
	require.NotContains(t, string(data), "mod download")

	require.Contains(t, last["FROM"], "distroless/static")
	require.Equal(t, image.User, last["USER"])
	var entry []string
	require.NoError(t, json.Unmarshal([]byte(last["ENTRYPOINT"]), &entry), "the shell form needs a shell")
	require.Equal(t, []string{image.Program}, entry)
	require.NotContains(t, last, "CMD")
	require.NotContains(t, last, "RUN", "there is no shell in the final image")
	require.True(t, strings.HasSuffix(last["COPY"], " "+image.Program))
}

// instructions reads a Dockerfile into one map for each stage. Of an
// instruction that is repeated in a stage, the last one is kept, as engines do
// for those that matter here.
func instructions(text string) []map[string]string {
	text = regexp.MustCompile(`(?m)^\s*#.*\n`).ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, "\\\n", " ")
	var stages []map[string]string
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if name == "FROM" {
			stages = append(stages, map[string]string{})
		}
		if len(stages) > 0 {
			stages[len(stages)-1][name] = strings.TrimSpace(rest)
		}
	}
	return stages
}
