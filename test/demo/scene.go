package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"azure-kms-plugin/test/stack"
	"azure-kms-plugin/test/stack/embedded"
	"azure-kms-plugin/test/vault"
)

const (
	vaultName = "kvlab"
	keyName   = "k1"
	namespace = "default"
)

// A scene is all that the acts play on. The emulated vault and what etcd keeps
// last for the whole demo; the rest is up between start and stop.
type scene struct {
	opts options
	term *terminal

	dir      string
	log      *os.File // of the Kubernetes and etcd libraries
	vault    *vault.Server
	version  string // the key's first one
	next     string // and the one after the rotation
	switched time.Time
	config   string // the EncryptionConfiguration

	plugin *stack.Plugin
	etcd   *embedded.Etcd
	store  *embedded.Store
	probe  *prober
}

// newScene makes the vault and its key, and describes the plugin.
func newScene(opts options, term *terminal) (_ *scene, err error) {
	s := &scene{opts: opts, term: term}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "kms-demo-"); err != nil {
		return nil, err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "libraries.log")); err != nil {
		return nil, err
	}
	embedded.Quiet(s.log)

	if s.vault, err = vault.Start(vault.Config{}); err != nil {
		return nil, fmt.Errorf("starting the emulated vault: %w", err)
	}
	if s.version, err = s.vault.Vault(vaultName).CreateKey(keyName, vault.KeyOptions{Bits: 2048}); err != nil {
		return nil, fmt.Errorf("creating the key: %w", err)
	}
	azureJSON, err := s.vault.AzureJSON(s.dir)
	if err != nil {
		return nil, fmt.Errorf("writing azure.json: %w", err)
	}
	if s.plugin, err = stack.NewPlugin(stack.PluginConfig{
		Bin: opts.plugin, Dir: s.dir,
		Vault: vaultName, Key: keyName, // and no version
		AzureJSON: azureJSON, Socket: filepath.Join(s.dir, "azurekms.socket"), Env: s.vault.Env(),
		Args: []string{"--activation-delay=" + activationDelay.String(), "--poll-interval=" + pollInterval.String(), "--log-format-json"},
	}); err != nil {
		return nil, err
	}
	s.config = filepath.Join(s.dir, "encryption.yaml")
	// One name for all versions of the key: the configuration outlives a rotation.
	return s, stack.WriteEncryptionConfig(s.config, []string{"secrets"},
		stack.Provider{Name: "azure", Endpoint: s.plugin.Endpoint, Timeout: 3 * time.Second})
}

// start starts the plugin as a new process, etcd over its data, and an
// encryption stack that holds no seed.
func (s *scene) start(ctx context.Context) error {
	began := time.Now()
	if err := s.plugin.Start(ctx); err != nil {
		return err
	}
	s.term.item("plugin", "process %d, key usable after %v", s.plugin.PID(), time.Since(began).Round(time.Millisecond))

	var err error
	if s.etcd, err = embedded.StartEtcd(ctx, filepath.Join(s.dir, "etcd")); err != nil {
		return err
	}
	s.term.item("etcd", "%s, embedded, %s", moduleVersion("go.etcd.io/etcd/server/v3"), s.etcd.URL)

	if s.store, err = embedded.Open(ctx, s.etcd.URL, s.config); err != nil {
		return err
	}
	s.term.item("kubernetes", "encryption stack and store of k8s.io/apiserver %s, KMS provider healthy",
		moduleVersion("k8s.io/apiserver"))
	s.probe = startProber(ctx, s.store)
	return nil
}

// stop stops what start has started, in the reverse order.
func (s *scene) stop() error {
	var err error
	if s.probe != nil {
		err = s.probe.stop()
		s.probe = nil
	}
	if s.store != nil {
		s.store.Close()
		s.store = nil
	}
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
	}
	if s.plugin == nil || s.plugin.Process == nil {
		return err
	}
	defer func() { s.plugin.Process = nil }()
	return errors.Join(err, s.plugin.Stop())
}

// close stops everything and removes its traces.
func (s *scene) close() error {
	err := s.stop()
	if s.vault != nil {
		err = errors.Join(err, s.vault.Close())
	}
	if s.log != nil {
		s.log.Close()
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

// moduleVersion is the version of a module that this program was built with.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return "of unknown version"
}
