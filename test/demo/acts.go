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
		{"Rotate the key in the vault", rotateKey},
		{"The API server takes the new key", waitForAPIServer},
		{"Rewrite all secrets, as a storage migration does", rewriteSecrets},
		{"Disable the old version and restart everything", retireVersion},
		{"Read all back, with the new version alone", readSecrets},
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
	s.term.item("", "the plugin is given no version: it follows the newest")
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
	return s.tellCalls()
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
	return s.tellCalls()
}

// fewCalls is more than an act takes, however many secrets it is about.
const fewCalls = 20

// tellCalls prints what the vault was asked since it was last reset.
func (s *scene) tellCalls() error {
	calls := s.vault.Calls()
	s.term.item("vault calls", "%d encrypt, %d decrypt, %d get, %d list, %d token; none of them per secret",
		calls["encrypt"], calls["decrypt"], calls["get"], calls["list"], calls["token"])
	if n := calls["encrypt"] + calls["decrypt"]; n > fewCalls {
		return fmt.Errorf("the vault was asked for %d operations, more than %d", n, fewCalls)
	}
	return nil
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

func demoSecret(i int) *corev1.Secret { return namedSecret(secretName(i)) }

func namedSecret(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{"password": fmt.Appendf(nil, "the password of %s", name)},
	}
}
