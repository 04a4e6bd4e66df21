package e2e_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
	"azure-kms-plugin/test/vault"
)

// TestOutage_MisconfiguredHere starts plugins with what this machine can tell is wrong.
// They end at once, with one line that says what to mend.
func TestOutage_MisconfiguredHere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*stack.PluginConfig)
		azure  string // azure.json; empty for a good one
		mend   string // what the line names
	}{
		"vault":   {change: func(c *stack.PluginConfig) { c.Vault = "no_vault" }, mend: "--keyvault-name"},
		"key":     {change: func(c *stack.PluginConfig) { c.Key = "../k1" }, mend: "--key-name"},
		"version": {change: func(c *stack.PluginConfig) { c.Version = "latest" }, mend: "--key-version"},
		"flag":    {change: func(c *stack.PluginConfig) { c.Args = []string{"--denial-grace=soon"} }, mend: "--denial-grace"},
		"file":    {change: func(c *stack.PluginConfig) { c.AzureJSON = "/nowhere/azure.json" }, mend: "--config-file-path"},
		"cut off": {azure: `{"tenantId": "11111111-2222-3333-4444-555555555555", "aadClientId":`, mend: "--config-file-path"},
		"no secret": {
			azure: `{"tenantId": "11111111-2222-3333-4444-555555555555", "aadClientId": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"}`,
			mend:  "--config-file-path",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			p := l.newPlugin(l.dir, l.version, func(p *stack.PluginConfig) {
				if c.azure != "" {
					p.AzureJSON = filepath.Join(l.dir, "bad.json")
					require.NoError(t, os.WriteFile(p.AzureJSON, []byte(c.azure), 0o600))
				}
				if c.change != nil {
					c.change(p)
				}
			})
			began := time.Now()
			cmd := exec.CommandContext(t.Context(), programs.plugin, p.Args()...)
			cmd.Env = l.vault.Env()
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			exit, ok := errors.AsType[*exec.ExitError](cmd.Run())
			require.True(t, ok, "%s", &said)
			require.Equal(t, exitUsage, exit.ExitCode(), "%s", &said)
			lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(said.String(), "azure-kms-plugin: see azure-kms-plugin --help\n", "")), "\n")
			require.Len(t, lines, 1)
			require.Contains(t, lines[0], c.mend)
			require.Empty(t, l.vault.Calls(), "the vault was asked")
			report.row(t.Name(), "exit 64 after "+round(time.Since(began)).String(), "1", "0", oneLine(lines[0]))
		})
	}
}

// TestOutage_MisconfiguredThere starts plugins with what only the other side can tell is
// wrong. They serve their socket and say why, once, and heal when it is mended there.
func TestOutage_MisconfiguredThere(t *testing.T) {
	t.Parallel()
	plugin := buildWithResolver(t)
	const missing = "0123456789abcdef0123456789abcdef"
	for name, c := range map[string]struct {
		reason string
		change func(*lab, *stack.PluginConfig)
	}{
		// Nobody knows the name that all others here use.
		"vault":   {vaultNotFound, func(*lab, *stack.PluginConfig) {}},
		"key":     {keyNotFound, func(_ *lab, c *stack.PluginConfig) { c.Key = "k2" }},
		"version": {keyNotFound, func(_ *lab, c *stack.PluginConfig) { c.Version = missing }},
		"tenant": {credentialsRefused, func(l *lab, c *stack.PluginConfig) {
			text, err := os.ReadFile(c.AzureJSON)
			require.NoError(l.t, err)
			other := bytes.ReplaceAll(text, []byte(l.vault.TenantID), []byte("99999999-2222-3333-4444-555555555555"))
			require.NoError(l.t, os.WriteFile(c.AzureJSON, other, 0o600))
		}},
		"permission": {accessDenied, func(l *lab, _ *stack.PluginConfig) {
			require.NoError(l.t, l.vault.Vault(vaultName).Allow(l.vault.ClientID, vault.PermGet))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			n := &node{name: name, statusFile: filepath.Join(l.dir, "status.json")}
			n.plugin = l.newPlugin(l.dir, l.version, func(p *stack.PluginConfig) {
				p.Args = []string{"--status-file=" + n.statusFile, "--log-format-json"}
				if c.reason == vaultNotFound {
					names := newResolver(t, plugin)
					names.use(p)
					names.answer(nameMissing)
				}
				c.change(l, p)
			})
			began := time.Now()
			require.NoError(t, n.plugin.Launch())
			var s sample
			var lacks []string
			require.Eventually(t, func() bool {
				s = sample{plugin: map[string]sight{}}
				for _, f := range surfaces {
					s.plugin[f.name] = f.look(t.Context(), n)
				}
				lacks = shows(c.reason, false)(s)
				return len(lacks) == 0
			}, seenWithin, 250*time.Millisecond, "%v", &lacks)
			report.row(t.Name(), "socket up, right reason everywhere", "1", "0", "after "+round(time.Since(began)).String())
			time.Sleep(time.Until(began.Add(max(shortestOutage, times().outage/10)))) // probes go on meanwhile
			lines, err := n.stateLines()
			require.NoError(t, err)
			phases := map[string]int{}
			for _, line := range lines {
				require.Equal(t, c.reason, line.Reason)
				phases[line.Phase]++
			}
			for phase, count := range phases {
				require.Equal(t, 1, count, "lines about %s %s", phase, c.reason)
			}
			require.True(t, n.plugin.Running())
		})
	}
}
