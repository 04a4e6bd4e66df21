package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/metrics"
	"azure-kms-plugin/plugin"
)

// startGarbage is when the first token and the first probe have come, usually.
const startGarbage = 2 * time.Second

// program is the plugin's parts, wired but not running. Nothing of it may run
// before instrument was called.
type program struct {
	key       keyvault.Ref // without a version while the newest is followed
	keyring   *keyvault.Keyring
	memory    *health.Memory
	rotation  rotation
	rotations health.Rotations
	uses      *health.Uses
	watch     *health.Watch
	report    *health.Report
	server    *plugin.Server
	tracker   *health.Tracker
	prober    *health.Prober
	registry  *prometheus.Registry
	metrics   *metrics.Metrics // set by instrument
	web       health.HandlerConfig
	signIn    func() keyvault.CredentialState

	statusFile *health.StatusFile // nil for none
}

func assemble(o options, id identity, logs loggers) (*program, error) {
	p := &program{key: o.key(id.config.Cloud()), registry: prometheus.NewRegistry(), signIn: id.credential.State}
	p.rotation.log = logs.rotation
	if dir := o.memoryDir(); dir != "" {
		p.memory = health.OpenMemory(health.MemoryPath(dir, o.address.String(), p.key), p.key, logs.main)
	}
	p.uses = health.NewUses(p.memory)
	client, err := keyvault.NewClient(keyvault.ClientConfig{
		Credential: id.credential,
		CAFile:     o.caFile,
		Proxy:      o.proxy(),
		Wrap:       o.wrap,
		UserAgent:  "azure-kms-plugin/" + build().Version,
		OnCall:     func(c keyvault.Call) { p.metrics.Call(c) },
		OnOutcome: func(outcome keyvault.Outcome) {
			p.keyring.Observe(outcome)
			p.tracker.Observe(outcome)
			if outcome.Err == nil && (outcome.Op == keyvault.OpDecrypt || outcome.Op == keyvault.OpUnwrap) {
				p.uses.Read(outcome.Key, outcome.Time)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	if p.keyring, err = p.newKeyring(o, client, logs); err != nil {
		return nil, err
	}
	p.tracker = health.NewTracker(health.Config{Key: p.keyring.WriteKey(), Graces: o.graces(), ActivationDelay: o.activationDelay, Memory: p.memory, Logger: logs.main})
	p.prober = health.NewProber(health.ProberConfig{Vault: client, Tracker: p.tracker, Uses: p.uses, Memory: p.memory, Logger: logs.main})
	p.watch = health.NewWatch(health.WatchConfig{Vault: client, Uses: p.uses, Tracker: p.tracker, Logger: logs.main})
	p.server, err = plugin.New(plugin.Config{
		Socket:     plugin.SocketConfig{Address: o.listenAddr, Mode: o.socketMode, Group: o.socketGroup},
		Keyring:    p.keyring,
		Readiness:  p.tracker,
		Format:     o.format,
		APIVersion: o.apiVersion,
		Observe:    func(r plugin.Request) { p.metrics.Request(string(r.Op), r.KeyID, r.Reason, r.Took) },
		Logger:     logs.main,
	})
	if err != nil {
		return nil, err
	}
	p.report = health.NewReport(health.ReportConfig{
		Tracker: p.tracker, Prober: p.prober, Uses: p.uses, Keyring: p.keyring, Rotations: &p.rotations,
		Instance: instance(o), Key: p.key, Following: o.following(),
		Clients:     p.clients,
		Credentials: id.credentials,
	})
	p.web = health.HandlerConfig{
		Socket: p.server.CheckSocket, Prober: p.late, Key: p.tracker.Usable,
		Status: p.report.Document, HealthzPath: o.healthzPath, FollowKey: o.followKey, Timeout: o.healthzTimeout,
	}
	if o.statusFile != "" {
		p.statusFile = health.NewStatusFile(health.StatusFileConfig{Path: o.statusFile, Status: p.report.Document, Logger: logs.main})
	}
	return p, nil
}

// instrument makes the metrics. It is apart from assemble because it takes as
// long as everything else up to the socket, and cannot fail: the socket need not
// wait for it.
func (p *program) instrument(o options, dropped func() uint64) {
	p.metrics = metrics.New(p.registry, metrics.Config{
		Build:           build(),
		KeyIDs:          keyIDs(o.decryptKeys),
		Operations:      operations(),
		Key:             p.keyMetrics,
		Conditions:      p.report.Conditions,
		Alarms:          p.versionAlarms,
		Credential:      p.signIn,
		DroppedLogLines: dropped,
	})
	if key := p.keyring.WriteKey(); key.Version != "" {
		p.metrics.Writes(key.KeyID())
	}
}

// memoryDir is where the state file goes: nowhere for an abstract socket,
// which has no directory, unless one is given.
func (o options) memoryDir() string {
	switch {
	case o.stateDir != "":
		return o.stateDir
	case o.address.Abstract():
		return ""
	}
	return filepath.Dir(o.address.Path)
}

func (o options) proxy() *keyvault.ProxyMode {
	if o.proxyAddress == "" {
		return nil
	}
	return &keyvault.ProxyMode{Address: o.proxyAddress, Port: o.proxyPort}
}

// keyIDs are those of the versions that are kept for decrypting.
func keyIDs(refs []keyvault.Ref) (ids []string) {
	for _, ref := range refs {
		if ref.Version != "" {
			ids = append(ids, ref.KeyIDs()...)
		}
	}
	return ids
}

func operations() (ops []string) {
	for _, op := range plugin.Ops() {
		ops = append(ops, string(op))
	}
	return ops
}

// late returns an error if something that must go on for ever does not.
func (p *program) late() error {
	if err := p.prober.Late(); err != nil {
		return err
	}
	return p.keyring.Late()
}

func (p *program) keyMetrics() metrics.Key {
	v := p.tracker.View()
	k := metrics.Key{
		Phase:          v.Phase,
		Usable:         v.Phase == health.Usable && p.late() == nil,
		Ready:          v.Answers(),
		LastSuccess:    v.LastSuccess,
		LastGet:        p.prober.LastGet(),
		LastDecrypt:    p.prober.LastDecrypt(),
		MetadataAccess: p.prober.MetadataAccess(),
		Created:        p.uses.Created(v.Key),
		Expires:        p.prober.Expires(),
		LastPoll:       p.rotations.LastLook(),
		NewerVersion:   p.keyring.Behind(),
		OutageSeconds:  v.Outage.Seconds(),
	}
	if v.Key.Version != "" {
		k.KeyID = v.Key.KeyID()
	}
	if v.Err != nil {
		k.Purge = v.Err.PurgeAt
	}
	return k
}

// versionAlarms are those of single versions.
func (p *program) versionAlarms() (all []metrics.Alarm) {
	for _, a := range p.report.Alarms() {
		if a.KeyID != "" {
			all = append(all, metrics.Alarm{KeyID: a.KeyID, Severity: a.Severity, Reason: a.Reason})
		}
	}
	return all
}

// announce logs what is served and where.
func (p *program) announce(o options, id identity, l listeners, logs loggers) {
	fields := []zap.Field{
		zap.String("version", build().Version), zap.Stringer("key", p.key), zap.Bool("follows_newest_version", o.following()),
		zap.Stringer("write_format", o.format), zap.Stringer("socket", o.address),
		zap.String("sign_in", id.config.Method()), zap.String("config_file", o.configFile),
	}
	for _, ref := range o.decryptKeys {
		fields = append(fields, zap.Stringer("decrypt_key", ref))
	}
	if l.healthz != nil {
		fields = append(fields, zap.Stringer("healthz", l.healthz.Addr()))
	}
	if l.metrics != nil {
		fields = append(fields, zap.Stringer("metrics", l.metrics.Addr()))
	}
	logs.main.Info("serving", fields...)
}

// run serves until ctx ends or stop delivers. The endpoints stay up until the
// last call has been answered.
func (p *program) run(ctx context.Context, stop <-chan os.Signal, l listeners, log *zap.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	webCtx, endWeb := context.WithCancel(context.WithoutCancel(ctx))
	defer endWeb()

	// The start leaves a megabyte of garbage behind, and an idle process
	// allocates so little that no collection comes by for minutes.
	tidy := time.AfterFunc(startGarbage, debug.FreeOSMemory)
	defer tidy.Stop()

	var g errgroup.Group
	g.Go(func() error {
		defer endWeb()
		defer cancel()
		return p.server.Run(ctx)
	})
	g.Go(func() error { return p.keyring.Run(ctx) })
	g.Go(func() error { return p.prober.Run(ctx) })
	g.Go(func() error { return p.watch.Run(ctx) })
	g.Go(func() error { return p.report.Run(ctx) })
	if p.statusFile != nil {
		g.Go(func() error { return p.statusFile.Run(webCtx) })
	}
	if l.healthz != nil {
		g.Go(func() error { return serveHTTP(webCtx, l.healthz, health.Handler(p.web), log) })
	}
	if l.metrics != nil {
		g.Go(func() error { return serveHTTP(webCtx, l.metrics, metrics.Handler(p.registry), log) })
	}
	go func() {
		for n := 0; ; n++ {
			select {
			case sig := <-stop:
				if n > 0 {
					p.server.Stop()
					return
				}
				log.Info("stopping", zap.Stringer("signal", sig))
				cancel()
			case <-webCtx.Done():
				return
			}
		}
	}()
	return g.Wait()
}
