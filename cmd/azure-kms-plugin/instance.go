package main

import (
	"crypto/rand"
	"os"
	"strings"
	"time"

	"azure-kms-plugin/health/status"
)

// bootIDFile is the kernel's name for the boot of this machine.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// instance tells this process from all others.
func instance(o options) status.Instance {
	i := status.Instance{
		ID: rand.Text(), PID: os.Getpid(), Socket: o.address.String(), Version: build().Version, StartTime: time.Now(),
	}
	i.Node, _ = os.Hostname()
	if id, err := os.ReadFile(bootIDFile); err == nil {
		i.BootID = strings.TrimSpace(string(id))
	}
	return i
}

// clients are the open connections to the socket.
func (p *program) clients() (all []status.Client) {
	for _, c := range p.server.Connections() {
		all = append(all, status.Client{PID: int(c.Peer.PID), APIServer: c.APIServer, KeyID: c.KeyID, Since: c.Since.UTC().Truncate(time.Second)})
	}
	return all
}

// credentials is how signing in is doing.
func (id identity) credentials() status.Credentials {
	s := id.credential.State()
	c := status.Credentials{Method: s.Method, Reloads: s.Reloads, FailedReloads: s.FailedReloads, Fault: s.Fault}
	if !s.Expires.IsZero() {
		at := s.Expires.UTC().Truncate(time.Second)
		c.ExpiryTime = &at
	}
	return c
}
