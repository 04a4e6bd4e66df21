package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An act is one step of the story. Each says what it did.
type act struct {
	title string
	play  func(context.Context, *scene) error
}

func acts(o options) []act {
	list := []act{
		{"Start the vault, the plugin and the store", startAll},
		{"Write " + thousands(o.secrets) + " secrets", writeSecrets},
		{"Look at one of them in etcd", showStored},
		{"Restart everything", restartAll},
		{"Read all back", readSecrets},
	}
	if !o.once {
		list = append(list, act{"The plugin is left running", leaveRunning})
	}
	return list
}

// play plays all acts and clears the stage, also when one fails.
func play(ctx context.Context, o options, t *terminal) (err error) {
	began := time.Now()
	t.say("%s", t.bold("azure-kms-plugin: Kubernetes secrets under a key in Azure Key Vault (emulated)"))
	s, err := newScene(o, t)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, a := range acts(o) {
		t.title(a.title)
		if err := a.play(ctx, s); err != nil {
			return err
		}
		if err := s.plugin.Failed(); err != nil {
			return err
		}
	}
	if o.once {
		t.say("\n%s in %v", t.green("done"), time.Since(began).Round(100*time.Millisecond))
	}
	return nil
}

func startAll(ctx context.Context, s *scene) error {
	s.term.item("vault", "https://%s.vault.azure.net, RSA key %s, version %s", vaultName, keyName, s.version)
	return s.start(ctx)
}

func writeSecrets(ctx context.Context, s *scene) error {
	began := time.Now()
	if err := s.each(ctx, "writing", func(ctx context.Context, i int) error {
		if err := s.store.Create(ctx, demoSecret(i)); err != nil {
			return fmt.Errorf("writing %s: %w", secretName(i), err)
		}
		return nil
	}); err != nil {
		return err
	}
	s.term.good("%s written in %v", thousands(s.opts.secrets), time.Since(began).Round(time.Millisecond))
	s.tellCalls()
	return nil
}

func restartAll(ctx context.Context, s *scene) error {
	s.vault.ResetCalls()
	if err := s.stop(); err != nil {
		return err
	}
	s.term.item("stopped", "plugin, etcd and encryption stack; what they held in memory is gone")
	return s.start(ctx)
}

func readSecrets(ctx context.Context, s *scene) error {
	began := time.Now()
	if err := s.each(ctx, "reading", func(ctx context.Context, i int) error {
		got, err := s.store.Get(ctx, namespace, secretName(i))
		if err != nil {
			return fmt.Errorf("reading %s: %w", secretName(i), err)
		}
		if !maps.EqualFunc(got.Data, demoSecret(i).Data, slices.Equal[[]byte]) {
			return fmt.Errorf("reading %s: it came back changed", secretName(i))
		}
		return nil
	}); err != nil {
		return err
	}
	s.term.good("%s read in %v, each one compared and equal", thousands(s.opts.secrets), time.Since(began).Round(time.Millisecond))
	s.tellCalls()
	return nil
}

// tellCalls prints what the vault was asked since it was last reset.
func (s *scene) tellCalls() {
	calls := s.vault.Calls()
	s.term.item("vault calls", "%d encrypt, %d decrypt, %d get, %d token; none of them per secret",
		calls["encrypt"], calls["decrypt"], calls["get"], calls["token"])
}

// each calls do for every secret, some at a time, behind a progress bar.
func (s *scene) each(ctx context.Context, what string, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= s.opts.secrets {
					return
				}
				// What has begun is finished, also on Ctrl-C.
				if err := do(context.WithoutCancel(ctx), i); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	finished := make(chan struct{})
	go func() { workers.Wait(); close(finished) }()
	bar := s.term.bar(what, s.opts.secrets)
	defer bar.end()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			bar.set(int(done.Load()))
		case <-finished:
			bar.set(int(done.Load()))
			return context.Cause(ctx)
		}
	}
}

func secretName(i int) string { return fmt.Sprintf("demo-%05d", i) }

func demoSecret(i int) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secretName(i)},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{"password": fmt.Appendf(nil, "the password of %s", secretName(i))},
	}
}

func leaveRunning(ctx context.Context, s *scene) error {
	t := s.term
	t.item("socket", "%s", s.plugin.Endpoint)
	t.item("health", "%s", s.plugin.HealthzURL)
	t.item("ready", "%s?verbose", s.plugin.ReadyzURL)
	t.item("metrics", "%s", s.plugin.MetricsURL)
	t.item("vault", "%s  (the emulator: keys, faults, counts)", s.vault.AdminURL())
	t.item("log", "%s", s.plugin.LogFile())
	t.say("\n   Disable the key, look at /readyz (within 30 seconds), enable it again:")
	patch := fmt.Sprintf("curl -X PATCH %s/vaults/%s/keys/%s/current -d", s.vault.AdminURL(), vaultName, keyName)
	t.say("     %s '{\"enabled\": false}'", patch)
	t.say("     %s '{\"enabled\": true}'", patch)
	t.say("\n   %s", t.bold("Ctrl-C ends everything."))
	select {
	case <-ctx.Done():
		t.say("\nstopping")
		return nil
	case <-s.plugin.Done():
		return s.plugin.Failed()
	}
}
