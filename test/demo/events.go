package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// What the plugin's log says about a rotation begins like this.
const (
	msgLearned  = "new key version learned"
	msgVerified = "new key version verified"
	msgWaiting  = "new key version cannot write yet"
	msgChanged  = "key ID changed"
)

// An event is a line of the plugin's log.
type event struct {
	Time       time.Time `json:"time"`
	Message    string    `json:"msg"`
	Version    string    `json:"version"`
	WritesFrom time.Time `json:"writes_from"`
	From       string    `json:"from"`
	To         string    `json:"to"`
	Cause      string    `json:"cause"`
	Reason     string    `json:"reason"`
}

// await waits until the log says something about the new version, and calls
// meanwhile while it waits.
func (s *scene) await(ctx context.Context, message string, meanwhile func()) (event, error) {
	limit := activationDelay + 10*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not in the plugin's log within %v: %s", limit, message))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		events, err := s.events()
		if err != nil {
			return event{}, fmt.Errorf("reading the plugin's log: %w", err)
		}
		for _, e := range events {
			switch {
			case e.Version != s.next:
			case strings.HasPrefix(e.Message, message):
				return e, nil
			case strings.HasPrefix(e.Message, msgWaiting):
				return e, fmt.Errorf("the plugin cannot write with the new version: %s", e.Reason)
			}
		}
		select {
		case <-ctx.Done():
			return event{}, context.Cause(ctx)
		case <-s.plugin.Done():
			return event{}, errors.Join(errors.New("the plugin has ended"), s.plugin.Failed())
		case <-tick.C:
			if meanwhile != nil {
				meanwhile()
			}
		}
	}
}

// events are the complete lines that the plugin has written since its start.
func (s *scene) events() ([]event, error) {
	out, err := s.plugin.Output(64 << 10)
	if err != nil {
		return nil, err
	}
	var list []event
	for line := range strings.Lines(out) {
		var e event
		// The first line may be cut, and the last one not yet be complete.
		if json.Unmarshal([]byte(line), &e) == nil {
			list = append(list, e)
		}
	}
	return list, nil
}
