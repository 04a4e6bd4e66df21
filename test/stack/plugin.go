package stack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"azure-kms-plugin/test/vault/freeport"
)

// PluginVar is the environment variable that names the plugin's binary when
// it is not bin/azure-kms-plugin of the source tree.
const PluginVar = "AZURE_KMS_PLUGIN"

// PluginBinary finds the plugin's binary: path if it is not empty, else what
// PluginVar says, else bin/azure-kms-plugin under root.
func PluginBinary(path, root string) (string, error) {
	if path == "" {
		path = os.Getenv(PluginVar)
	}
	if path == "" {
		path = filepath.Join(root, "bin", "azure-kms-plugin")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("no plugin at %s: run `make build` first, or name another binary in %s", path, PluginVar)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return "", fmt.Errorf("%s is not a program: name the plugin's binary in %s", path, PluginVar)
	}
	return path, nil
}

// A PluginConfig describes a plugin as its operator would: by its flags.
type PluginConfig struct {
	Bin string
	Dir string // for the log
	// Vault, Key and Version name the key version that the plugin is pinned to.
	// Without a version the plugin is told none.
	Vault, Key, Version string
	AzureJSON           string
	// Socket is the path of the unix socket; at most 107 bytes.
	Socket string
	Env    []string // such as the emulator's proxy
	Args   []string // flags beyond those of HyperShift
}

// A Plugin is a plugin process that can be started again under the same addresses.
type Plugin struct {
	*Process
	Endpoint    string // unix:///...
	HealthzURL  string
	ReadyzURL   string
	MetricsURL  string
	StatusURL   string
	cfg         PluginConfig
	healthzPort int
	metricsPort int
}

// NewPlugin chooses the ports of a plugin; nothing runs yet.
func NewPlugin(cfg PluginConfig) (*Plugin, error) {
	if len(cfg.Socket) > 107 {
		return nil, fmt.Errorf("the socket path %s has %d bytes, the kernel takes 107", cfg.Socket, len(cfg.Socket))
	}
	healthz, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	metrics, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	base := fmt.Sprintf("http://127.0.0.1:%d", healthz)
	return &Plugin{
		cfg: cfg, healthzPort: healthz, metricsPort: metrics,
		Endpoint:   "unix://" + cfg.Socket,
		HealthzURL: base + "/healthz",
		ReadyzURL:  base + "/readyz",
		StatusURL:  base + "/status",
		MetricsURL: fmt.Sprintf("http://127.0.0.1:%d/metrics", metrics),
	}, nil
}

// Args are the plugin's arguments: those that HyperShift gives its sidecar,
// in its order, with this machine's paths and ports.
func (p *Plugin) Args() []string {
	args := []string{"--keyvault-name=" + p.cfg.Vault, "--key-name=" + p.cfg.Key}
	if p.cfg.Version != "" {
		args = append(args, "--key-version="+p.cfg.Version)
	}
	args = append(args,
		"--listen-addr="+p.Endpoint,
		fmt.Sprintf("--healthz-port=%d", p.healthzPort),
		fmt.Sprintf("--metrics-addr=%d", p.metricsPort),
		"--healthz-path=/healthz",
		"--config-file-path="+p.cfg.AzureJSON,
		"-v=1",
	)
	return append(args, p.cfg.Args...)
}

// Socket is the path of the plugin's unix socket.
func (p *Plugin) Socket() string { return p.cfg.Socket }

// Launch starts the plugin and does not wait for it.
func (p *Plugin) Launch() error {
	proc, err := Start(Command{
		Name: "azure-kms-plugin", Path: p.cfg.Bin, Args: p.Args(), Env: p.cfg.Env,
		Log: filepath.Join(p.cfg.Dir, "plugin.log"),
	})
	if err != nil {
		return err
	}
	p.Process = proc
	return nil
}

// Start starts the plugin and waits until its socket answers and its key is usable.
func (p *Plugin) Start(ctx context.Context) error {
	if err := p.Launch(); err != nil {
		return err
	}
	if err := p.WaitUsable(ctx); err != nil {
		p.Kill()
		return err
	}
	return nil
}

// WaitUsable waits until the plugin's socket accepts and /readyz is green.
func (p *Plugin) WaitUsable(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, fmt.Errorf("not ready after 20 s"))
	defer cancel()
	return p.WaitReady(ctx, func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "unix", p.cfg.Socket)
		if err != nil {
			return err
		}
		c.Close()
		return get(ctx, p.ReadyzURL)
	})
}

// KeyID is the ID under which a key version must appear in etcd: the rule of
// the existing plugins, written down here once more so that the product's own
// code is held against it.
func KeyID(vault, key, version string) string {
	sum := sha256.Sum256([]byte("https://" + vault + ".vault.azure.net/keys/" + key + "/" + version))
	return hex.EncodeToString(sum[:])
}

// Page is the body of one of the plugin's pages, which has to answer 200.
func (p *Plugin) Page(ctx context.Context, url string) (string, error) { return fetch(ctx, url) }

// Requests is how many KMS requests of one operation ("status", "encrypt",
// "decrypt") the plugin says it has served since it started.
func (p *Plugin) Requests(ctx context.Context, op string) (int, error) {
	page, err := fetch(ctx, p.MetricsURL)
	if err != nil {
		return 0, err
	}
	total := 0
	label := `"` + op + `"`
	for line := range strings.Lines(page) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(series, "azure_kms_requests_total{") || !strings.Contains(series, label) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("reading %s: %w", p.MetricsURL, err)
		}
		total += int(n)
	}
	return total, nil
}
