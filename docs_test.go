package deps_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

// What a scrape or an error can show is explained to those who read it.
func TestDocs_ExplainEveryReasonAndSeries(t *testing.T) {
	page, err := os.ReadFile("docs/operation.md")
	require.NoError(t, err)
	rows := strings.Split(string(page), "\n")
	for _, reason := range keyvault.Reasons() {
		if reason == keyvault.Success {
			continue
		}
		code := plugin.CodeFor(&keyvault.Error{Reason: reason}).String()
		found := false
		for _, row := range rows {
			found = found || strings.HasPrefix(row, "| `") && strings.Contains(row, "`"+string(reason)+"`") && strings.Contains(row, "| "+code+" |")
		}
		require.True(t, found, "no row for %s with %s", reason, code)
	}
	scrape, err := os.ReadFile("metrics/testdata/first-scrape.txt")
	require.NoError(t, err)
	series := regexp.MustCompile(`(?m)^# TYPE (azure_kms_\w+)`).FindAllSubmatch(scrape, -1)
	require.NotEmpty(t, series)
	for _, s := range series {
		require.Contains(t, string(page), "`"+string(s[1]), "%s is not explained", s[1])
	}
}

// Links between pages lead somewhere.
func TestDocs_LinksLeadSomewhere(t *testing.T) {
	for _, page := range []string{"README.md", "CONTRIBUTING.md", "docs/configuration.md", "docs/compatibility.md", "docs/operation.md", "docs/benchmarks.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		dir := ""
		if strings.HasPrefix(page, "docs/") {
			dir = "docs/"
		}
		for _, m := range regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`).FindAllStringSubmatch(string(text), -1) {
			_, err := os.Stat(dir + m[1])
			require.NoError(t, err, "%s links to %s", page, m[1])
		}
	}
}

// Whoever copies an azure.json from a page has one that is taken.
func TestDocs_AzureJSONIsTaken(t *testing.T) {
	for page, want := range map[string]int{"README.md": 1, "docs/configuration.md": 6} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(text, -1)
		require.Len(t, blocks, want, page)
		ways := map[string]bool{}
		for _, b := range blocks {
			path := filepath.Join(t.TempDir(), "azure.json")
			require.NoError(t, os.WriteFile(path, b[1], 0o600))
			cfg, err := keyvault.ReadConfig(path)
			require.NoError(t, err, "%s: %s", page, b[1])
			ways[cfg.Method()] = true
		}
		require.Len(t, ways, min(want, 5), "%s has each way to sign in", page)
	}
}

// A role that is given fits the flag that its commands are for: the smaller one ends
// in AccessDenied with the default.
func TestDocs_RolesFitTheFlag(t *testing.T) {
	text, err := os.ReadFile("docs/configuration.md")
	require.NoError(t, err)
	wrap, seen := false, map[bool]int{}
	for paragraph := range strings.SplitSeq(string(text), "\n\n") {
		if !strings.HasPrefix(paragraph, "    ") {
			wrap = strings.Contains(paragraph, "With `--key-operations=wrap`")
			if !wrap && !strings.HasPrefix(paragraph, "Without that flag") {
				continue
			}
			seen[wrap]++
			continue
		}
		if strings.Contains(paragraph, "--role") || strings.Contains(paragraph, "set-policy") {
			small := strings.Contains(paragraph, "Service Encryption User") || strings.Contains(paragraph, "wrapKey unwrapKey")
			require.Equal(t, wrap, small, paragraph)
		}
	}
	require.Equal(t, map[bool]int{false: 3, true: 3}, seen, "RBAC, access policies and Managed HSM")
}
