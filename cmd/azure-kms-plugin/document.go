package main

import (
	"time"

	"azure-kms-plugin/health/status"
)

// document makes the status document, from memory.
func (p *program) document() *status.Document {
	v := p.tracker.View()
	d := &status.Document{
		APIVersion: status.APIVersion, Kind: status.Kind, ObservedTime: time.Now(), StaleAfterSeconds: 90,
		Key: p.key.URL(), Following: p.key.Version == "", Phase: status.Phase(v.Phase),
		Instance: status.Instance{Version: build().Version},
	}
	if key := p.keyring.WriteKey(); key.Version != "" {
		d.KeyID, d.RemoteKeyID = key.KeyID(), key.KeyID()
		d.Keys = []status.Key{{Version: key.Version, KeyID: key.KeyID(), Role: status.RoleWrite, URL: key.URL()}}
	}
	if v.Err != nil {
		d.Failure = &status.Failure{Reason: string(v.Err.Reason), Cause: string(v.Err.Cause), Since: v.Since, Text: v.Err.Text}
	}
	return d
}
