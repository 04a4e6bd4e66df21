package health

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

const (
	watchIdle = time.Hour        // between two looks at an old version
	watchUsed = 5 * time.Minute  // at one that is in use
	watchBad  = 20 * time.Second // at one whose alarm is on, for watchHot: somebody is about to mend it
	watchHot  = time.Hour
	watchTick = 5 * time.Second
)

// Attributes is what a Watch asks; its errors are [*keyvault.Error].
type Attributes interface {
	Get(ctx context.Context, key keyvault.Ref) (keyvault.Attributes, error)
}

// WatchConfig configures a Watch. All fields but Logger are required.
type WatchConfig struct {
	Vault   Attributes
	Uses    *Uses
	Tracker *Tracker    // says which version writes: that one is the prober's
	Logger  *zap.Logger // gets one line for each alarm that goes on or off; nil for none
}

// A Watch looks at the old versions that data may be under, one at a time and by GET
// only, so that a disabled one is known before somebody needs it. Their state never fails Status.
type Watch struct {
	cfg  WatchConfig
	said map[string]said // by version; owned by Run
}

type said struct {
	severity status.Severity
	reason   keyvault.Reason
}

// NewWatch returns a watch that does nothing until Run.
func NewWatch(cfg WatchConfig) *Watch {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Watch{cfg: cfg, said: map[string]said{}}
}

// Run looks until ctx ends. It returns nil.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	for {
		w.look(ctx)
		w.tell()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look asks for the version whose turn has come, if there is one.
func (w *Watch) look(ctx context.Context) {
	writes, _ := w.cfg.Tracker.Key()
	key, ok := w.cfg.Uses.due(writes, time.Now())
	if !ok {
		return
	}
	a, err := w.cfg.Vault.Get(keyvault.Background(ctx), key)
	if ctx.Err() != nil {
		return
	}
	a.Key = key
	var e *keyvault.Error
	if err != nil && !errors.As(err, &e) {
		e = &keyvault.Error{Op: keyvault.OpGet, Key: key, Reason: keyvault.Unknown, Text: key.Where() + ": unexpected failure of the client", Err: err}
	}
	w.cfg.Uses.looked(key, a, e, time.Now())
}

// tell logs what has changed.
func (w *Watch) tell() {
	now := time.Now()
	writes, _ := w.cfg.Tracker.Key()
	for _, u := range w.cfg.Uses.snapshot() {
		var is said
		if severity, on := u.alarm(now); on && !u.key.SameVersion(writes) {
			is = said{severity, u.bad.Reason}
		}
		was := w.said[u.key.Version]
		if is == was {
			continue
		}
		w.said[u.key.Version] = is
		version := zap.String("version", u.key.Version)
		if is.severity == "" {
			delete(w.said, u.key.Version)
			w.cfg.Logger.Info("old key version can be read again, or is no longer in use", version)
			continue
		}
		log := w.cfg.Logger.Warn
		if is.severity == status.Critical {
			log = w.cfg.Logger.Error
		}
		log("old key version cannot be read, and data may be under it: make it usable again, and restart nothing",
			version, zap.String("reason", string(is.reason)), zap.String("severity", string(is.severity)), zap.String("text", u.bad.Shown()))
	}
}

// due returns the version to look at now, other than the one that writes.
func (us *Uses) due(writes keyvault.Ref, now time.Time) (keyvault.Ref, bool) {
	us.mu.Lock()
	defer us.mu.Unlock()
	var found *use
	for _, u := range us.list {
		if u.key.SameVersion(writes) || now.Before(u.next) || now.Sub(u.used()) > maybeInUse {
			continue
		}
		if found == nil || u.next.Before(found.next) {
			found = u
		}
	}
	if found == nil {
		return keyvault.Ref{}, false
	}
	found.next = now.Add(watchUsed) // until the answer says better
	return found.key, true
}

// looked takes in the answer.
func (us *Uses) looked(key keyvault.Ref, a keyvault.Attributes, err *keyvault.Error, now time.Time) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u := us.of(key)
	u.looked(a, err, now)
	u.next = now.Add(u.pause(now, err))
}
