package deps_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health"
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

// Every word that a condition or an alarm can have for a reason is explained where the
// document is.
func TestDocs_ExplainReasonsOfConditions(t *testing.T) {
	page, err := os.ReadFile("docs/status.md")
	require.NoError(t, err)
	text, _, _ := strings.Cut(string(page), "## Example")
	require.NotEmpty(t, health.ConditionReasons())
	for _, reason := range health.ConditionReasons() {
		row := regexp.MustCompile("(?m)^\\|[^|]*`" + reason + "`[^|]*\\|")
		require.Regexp(t, row, text, "no row of a table is about %s", reason)
	}
}

// Links between pages lead somewhere.
func TestDocs_LinksLeadSomewhere(t *testing.T) {
	for _, page := range []string{"README.md", "CONTRIBUTING.md", "docs/configuration.md", "docs/compatibility.md", "docs/operation.md", "docs/benchmarks.md", "docs/install.md", "docs/commands.md", "docs/status.md"} {
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

// The look into etcd before an old version is disabled says yes only if it has seen
// something and all of it was under the new key.
func TestDocs_EtcdCheck(t *testing.T) {
	page, err := os.ReadFile("docs/operation.md")
	require.NoError(t, err)
	snippet := regexp.MustCompile(`(?s)    \(set -o pipefail\n.*?done"\)\n`).FindString(string(page))
	require.NotEmpty(t, snippet)
	newID, oldID := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	snippet = strings.ReplaceAll(snippet, "'<key ID>'", `"$NEW"`)
	// As etcdctl 3.7 prints them.
	object := func(resource, name, value string) string {
		return fmt.Sprintf("\"Key\" : %q\n\"CreateRevision\" : 2\n\"Value\" : %q\n\"Lease\" : 0\n", "/registry/"+resource+"/"+name, value)
	}
	under := func(id string) string { return "k8s:enc:kms:v2:azure:\n\x90\x03\xff\"\n \\\x12@" + id + "\x1a\x80\x02" }
	good := map[string]string{
		"secrets":    object("secrets", "a/b", under(newID)) + object("secrets", "a/c", under(newID)),
		"configmaps": object("configmaps", "a/d", under(newID)),
	}
	for name, tc := range map[string]struct {
		new     string
		secrets string // in the place of the good ones
		fail    string // what etcdctl does after that
		says    string
		no      bool
	}{
		"all new":                 {newID, good["secrets"], "", "/registry/secrets/: 2 objects, 2 under the new key\n/registry/configmaps/: 1 objects, 1 under the new key", false},
		"one old":                 {newID, good["secrets"] + object("secrets", "x/y", under(oldID)), "", "not under the new key: \"/registry/secrets/x/y\"\n/registry/secrets/: 3 objects, 2 under", true},
		"one not encrypted":       {newID, object("secrets", "x/y", "k8s\x00 "+newID), "", "not under the new key: \"/registry/secrets/x/y\"", true},
		"another provider":        {newID, object("secrets", "x/y", strings.Replace(under(newID), ":azure:", ":azure-2:", 1)), "", "not under the new key: \"/registry/secrets/x/y\"", true},
		"no key ID":               {"", good["secrets"], "", "no key ID, which has 64 digits", true},
		"a part of the key ID":    {newID[:8], good["secrets"], "", "no key ID, which has 64 digits", true},
		"a hash for the key ID":   {"sha256:" + newID, good["secrets"], "", "2 objects, 0 under", true},
		"the text as it stands":   {"<key ID>", good["secrets"], "", "2 objects, 0 under", true},
		"a wrong prefix":          {newID, "", "", "/registry/secrets/: 0 objects", true},
		"etcd does not answer":    {newID, "", "exit 1", "/registry/secrets/: 0 objects", true},
		"etcd ends amid its list": {newID, good["secrets"], "exit 1", "2 objects, 2 under", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for resource, text := range map[string]string{"secrets": tc.secrets, "configmaps": good["configmaps"]} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, resource), []byte(text), 0o600))
			}
			etcdctl := "#!/bin/sh\ncase $3 in /registry/secrets/) cat " + dir + "/secrets; " + tc.fail + ";; *) cat " + dir + "/configmaps;; esac\n"
			require.NoError(t, os.WriteFile(filepath.Join(dir, "etcdctl"), []byte(etcdctl), 0o700))
			cmd := exec.Command("bash", "-c", snippet)
			cmd.Env = append(os.Environ(), "NEW="+tc.new, "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), tc.says)
			verdict := "\nall under the new key: yes\n"
			if tc.no {
				verdict = "\nall under the new key: no\n"
			}
			require.True(t, strings.HasSuffix(string(out), verdict), "%s", out)
		})
	}
}
