package main

import (
	"context"
	"fmt"
	"strings"
)

// leaveRunning says where everything is, and waits for Ctrl-C.
func leaveRunning(ctx context.Context, s *scene) error {
	t := s.term
	t.item("socket", "%s", s.plugin.Endpoint)
	t.item("health", "%s", s.plugin.HealthzURL)
	t.item("ready", "%s?verbose", s.plugin.ReadyzURL)
	t.item("page", "%s", strings.TrimSuffix(s.plugin.StatusURL, "status"))
	t.item("status", "%s  (bin/azure-kms-plugin status %[1]s)", s.plugin.StatusURL)
	t.item("metrics", "%s", s.plugin.MetricsURL)
	t.item("vault", "%s  (the emulator: keys, faults, counts)", s.vault.AdminURL())
	t.item("etcd", "%s  (etcdctl --endpoints=%s get --prefix --keys-only /registry)", s.etcd.URL, s.etcd.URL)
	t.item("log", "%s", s.plugin.LogFile())
	t.say("\n   Disable the key, look at /readyz (within 30 seconds), enable it again:")
	patch := fmt.Sprintf("curl -X PATCH %s/vaults/%s/keys/%s/current -d", s.vault.AdminURL(), vaultName, keyName)
	t.say("     %s '{\"enabled\": false}'", patch)
	t.say("     %s '{\"enabled\": true}'", patch)
	t.say("\n   Rotate the key again, and follow it in the log:")
	t.say("     curl -X POST %s/vaults/%s/keys/%s -d '{}'", s.vault.AdminURL(), vaultName, keyName)
	t.say("\n   %s", t.bold("Ctrl-C ends everything."))
	select {
	case <-ctx.Done():
		t.say("\nstopping")
		return nil
	case <-s.plugin.Done():
		return s.plugin.Failed()
	}
}
