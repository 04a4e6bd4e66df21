package statusdoc_test

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/test/web/statusdoc"
)

var update = flag.Bool("update", false, "write the example into docs/status.md")

const page = "../../../docs/status.md"

// The example on the page is a document as it is written.
func TestDocs_Example(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```json\n(.*?)```")
	want, err := json.MarshalIndent(statusdoc.Samples(now)[status.Usable], "", "  ")
	require.NoError(t, err)
	if *update {
		done := false
		text = block.ReplaceAllFunc(text, func(old []byte) []byte {
			if done {
				return old
			}
			done = true
			return []byte("```json\n" + string(want) + "\n```")
		})
		require.NoError(t, os.WriteFile(page, text, 0o644))
	}
	blocks := block.FindAllSubmatch(text, -1)
	require.Len(t, blocks, 1)
	require.Equal(t, string(want)+"\n", string(blocks[0][1]))
}

// Every field and every word of a closed list is explained.
func TestDocs_ExplainEveryField(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	explained := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(string(text), "")
	walk := func(s map[string]any) {
		props, _ := s["properties"].(map[string]any)
		for name, p := range props {
			require.Contains(t, explained, "`"+name+"`")
			words, _ := p.(map[string]any)["enum"].([]any)
			for _, w := range words {
				if w != "" {
					require.Contains(t, explained, "`"+w.(string)+"`", name)
				}
			}
		}
	}
	schema := readSchema(t)
	walk(schema)
	for _, def := range schema["$defs"].(map[string]any) {
		walk(def.(map[string]any))
	}
	require.True(t, strings.HasPrefix(string(text), "# "))
}
