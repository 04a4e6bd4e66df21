package main

import (
	"sync"

	"go.uber.org/zap"

	"azure-kms-plugin/keyvault"
)

// rotation is what has been said about the versions of the key.
type rotation struct {
	log *zap.Logger

	mu      sync.Mutex
	failing keyvault.Reason // of the last look for the newest version; empty if it succeeded
}

// newKeyring makes the keyring that the command line asks for. What it reports
// goes to the log, to the tracker, which judges the version that writes, and to
// the metrics.
func (p *program) newKeyring(o options, client *keyvault.Client, logs loggers) (*keyvault.Keyring, error) {
	cfg := keyvault.KeyringConfig{
		Vault: client, Directory: client, Write: p.key, Others: o.decryptKeys,
		OnEvent: p.rotated, OnPoll: p.polled,
		OnSeed: func(e keyvault.SeedEvent) {
			p.tracker.Seed(e)
			p.uses.Seed(e)
		},
		Warn: func(e *keyvault.Error) {
			logs.main.Warn("the versions of the key cannot be listed: that is optional, but only data whose version is known, or named in it, can then be read",
				zap.String("reason", string(e.Reason)), zap.String("text", e.Text))
		},
	}
	if p.memory != nil {
		cfg.Memory = p.memory
	}
	if !o.following() {
		return keyvault.NewPinned(cfg)
	}
	return keyvault.NewFollowing(keyvault.FollowConfig{KeyringConfig: cfg, PollInterval: o.pollInterval, ActivationDelay: o.activationDelay})
}

// begin says with which key ID the process starts. While the newest version is
// followed and none is remembered, that is not known yet.
func (p *program) begin(o options) {
	key := p.keyring.WriteKey()
	if key.Version == "" {
		return
	}
	cause, before := "start", keyvault.Ref{}
	if o.following() {
		cause = "memory"
	} else if p.memory != nil {
		before, _ = p.memory.LastVersion()
		if p.memory.Earlier(key.Version) {
			p.rotation.log.Warn("the key ID goes back to one that was in use earlier: for Kubernetes that is one more rotation, and what was written since has to be rewritten",
				zap.String("version", key.Version), zap.String("last_version", before.Version))
		}
	}
	if before.SameVersion(key) {
		before = keyvault.Ref{}
	}
	p.uses.Wrote(before)
	p.rotation.changed(before, key, cause)
}

// changed puts a change of the key ID on record.
func (r *rotation) changed(from, to keyvault.Ref, cause string) {
	var id string
	if from.Version != "" {
		id = from.KeyID()
	}
	r.log.Info("key ID changed", zap.String("from", id), zap.String("to", to.KeyID()),
		zap.String("version", to.Version), zap.String("cause", cause))
}

// rotated takes in what has happened to a version.
func (p *program) rotated(e keyvault.RotationEvent) {
	log, version := p.rotation.log, zap.String("version", e.Key.Version)
	p.rotations.Event(e)
	switch e.Step {
	case keyvault.VersionLearned:
		log.Info("new key version learned: it can be read from now on", version, zap.String("key_id", e.Key.KeyID()), zap.Time("writes_from", e.Due.UTC()))
	case keyvault.VersionVerified:
		log.Info("new key version verified by a round trip", version, zap.Time("writes_from", e.Due.UTC()))
	case keyvault.VersionWaiting:
		log.Warn("new key version cannot write yet", version, zap.String("reason", string(e.Err.Reason)), zap.String("text", e.Err.Text))
	case keyvault.VersionAvailable:
		log.Info("a newer version of the key is available: this process writes with the one that --key-version or --key-url names",
			version, zap.String("key_id", e.Key.KeyID()))
	case keyvault.VersionAdopted:
		p.tracker.Follow(e.Key, e.Proven, e.Settled)
		p.uses.Wrote(e.From)
		p.metrics.Writes(e.Key.KeyID())
		p.rotation.changed(e.From, e.Key, string(e.Cause))
	}
}

// polled takes in a look for the newest version.
func (p *program) polled(a keyvault.Attributes, err *keyvault.Error) {
	p.prober.Polled(a, err)
	r := &p.rotation
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		p.rotations.Looked()
		if r.failing != "" {
			r.log.Info("new key versions can be looked for again")
		}
		r.failing = ""
		return
	}
	// A pinned keyring does not need to know, and without a version to write
	// with, this is a failure of the key, which the tracker reports.
	if r.failing != err.Reason && p.key.Version == "" && p.keyring.WriteKey().Version != "" {
		r.log.Warn("new key versions cannot be looked for: the one in use stays", zap.String("reason", string(err.Reason)), zap.String("text", err.Text))
		r.failing = err.Reason
	}
}
