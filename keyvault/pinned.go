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
	p := &pinned{cfg: cfg, keys: k}
	p.poll = poll{cfg: &p.cfg, every: pinnedPoll, at: time.Now().Add(pinnedFirst)}
	k.guide = p
	return k, nil
}

// pinned is the guide of a keyring that does not move: it reports a newer version.
type pinned struct {
	cfg      KeyringConfig
	keys     *Keyring
	poll     poll
	dated    bool      // the vault has told of the version that writes
	created  time.Time // when that was; zero if the vault does not tell
	reported string
}

func (p *pinned) round(ctx context.Context) time.Duration {
	if p.cfg.Directory == nil {
		return maxRest
	}
	if !p.poll.due() {
		return time.Until(p.poll.at)
	}
	a, ok := p.poll.look(ctx, false)
	if !ok {
		return time.Until(p.poll.at)
	}
	own := strings.EqualFold(a.Key.Version, p.cfg.Write.Version)
	if !p.dated {
		p.date(ctx, a, own)
	}
	// A server that lags, or an old backup, may name an older one.
	if !own && p.dated && !a.Created.Before(p.created) {
		p.keys.lookup.known.add(a.Key)
		p.keys.behind.Store(true)
		if p.reported != a.Key.Version && p.cfg.OnEvent != nil {
			p.cfg.OnEvent(RotationEvent{Step: VersionAvailable, Key: a.Key})
		}
		p.reported = a.Key.Version
	}
	return time.Until(p.poll.at)
}

// date finds out when the version that writes was created: a process that follows the
// newest version later on has to know which are newer.
func (p *pinned) date(ctx context.Context, newest Attributes, own bool) {
	a := newest
	if !own {
		var err error
		if a, err = p.cfg.Directory.Get(Background(ctx), p.cfg.Write); err != nil {
			return // the look itself was allowed; the next one may tell
		}
	}
	p.dated, p.created = true, a.Created
	p.keys.created(p.cfg.Write, a.Created)
}
