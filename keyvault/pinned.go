package keyvault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// pinnedPoll is how often a pinned keyring looks for a newer version, which
// nothing waits for. The first look is not part of the start.
const (
	pinnedPoll  = time.Hour
	pinnedFirst = 5 * time.Second
)

// NewPinned makes a keyring that writes with one version. It makes no call.
func NewPinned(cfg KeyringConfig) (*Keyring, error) {
	faults := cfg.check()
	if cfg.Write.Version == "" {
		faults = append(faults, fmt.Errorf("%s has no version, and a pinned keyring needs one", cfg.Write))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	k := newKeyring(cfg)
	k.write(cfg.Write, time.Time{})
	p := &pinned{cfg: cfg, lookup: k.lookup}
	p.poll = poll{cfg: &p.cfg, every: pinnedPoll, at: time.Now().Add(pinnedFirst)}
	k.guide = p
	return k, nil
}

// pinned is the guide of a keyring that does not move: it reports a newer version.
type pinned struct {
	cfg      KeyringConfig
	lookup   *lookup
	poll     poll
	reported string
}

func (p *pinned) round(ctx context.Context) time.Duration {
	if p.cfg.Directory == nil {
		return maxRest
	}
	if !p.poll.due() {
		return time.Until(p.poll.at)
	}
	// The newest is the one created last, so any other than ours is newer.
	a, ok := p.poll.look(ctx, false)
	if ok && !strings.EqualFold(a.Key.Version, p.cfg.Write.Version) {
		p.lookup.known.add(a.Key)
		if p.reported != a.Key.Version && p.cfg.OnEvent != nil {
			p.cfg.OnEvent(RotationEvent{Step: VersionAvailable, Key: a.Key})
		}
		p.reported = a.Key.Version
	}
	return time.Until(p.poll.at)
}
