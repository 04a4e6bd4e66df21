package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	azlog "github.com/Azure/azure-sdk-for-go/sdk/azcore/log"
	"go.uber.org/zap"

	"azure-kms-plugin/keyvault"
)

// serve runs the plugin. Everything on this machine that can be wrong is found
// before the socket is bound, so that a mistake never costs a running plugin
// its socket; what only the vault can tell is left to the prober.
func serve(ctx context.Context, stop <-chan os.Signal, o options, faults []string, stderr io.Writer) int {
	// The SDK's own log can be switched on from the environment and shows
	// requests. Ours says what is needed.
	azlog.SetListener(nil)
	logs := newLoggers(stderr, o.json, o.verbosity)
	refuse := func(faults ...string) int {
		lastWords(o.terminationLog, complain(stderr, faults))
		return exitUsage
	}

	p, id, faults := plan(o, faults, seeHelp, logs)
	if len(faults) > 0 {
		return refuse(faults...)
	}
	listeners, faults := listen(o)
	defer listeners.close()
	if len(faults) > 0 {
		return refuse(faults...)
	}
	if err := p.server.Listen(); err != nil {
		return refuse("--listen-addr: " + err.Error())
	}
	p.instrument(o, logs.dropped.Load)
	for _, w := range append(o.warnings, localWarnings(o, id.config)...) {
		logs.main.Warn(w)
	}
	p.announce(o, id, listeners, logs)
	p.begin(o)
	if err := p.run(ctx, stop, listeners, logs.main); err != nil {
		logs.main.Error("serving ended", zap.Error(err))
		lastWords(o.terminationLog, wordsOfEnd+err.Error()+"\n")
		return exitFault
	}
	lastWords(o.terminationLog, lastState(p.report.Document()))
	logs.main.Info("stopped")
	return exitOK
}

// plan is all that comes before the first thing that others could notice: it reads flags
// and files and wires the program. It returns every fault, those of the command line
// first, for which help is where to look. What serve does not start with, doctor
// finds by it too.
func plan(o options, faults []string, help string, logs loggers) (*program, identity, []string) {
	id, idFaults := signIn(o, logs.main)
	all := slices.Concat(faults, idFaults, o.checkFiles(id.config), checkEnvironment())
	if len(faults) > 0 {
		all = append(all, help)
	}
	if len(all) > 0 {
		return nil, id, all
	}
	p, err := assemble(o, id, logs)
	if err != nil {
		return nil, id, []string{err.Error()}
	}
	return p, id, nil
}

// identity is what azure.json and the files it names say.
type identity struct {
	config     *keyvault.AzureConfig
	credential *keyvault.Credential
}

// signIn reads azure.json and makes the credential, without using the network.
// It reports its faults beside those of the command line, so it is done even
// if there are some.
func signIn(o options, log *zap.Logger) (id identity, faults []string) {
	if o.caFile != "" {
		if err := keyvault.CheckCAFile(o.caFile); err != nil {
			faults = append(faults, "--ca-file: "+err.Error())
			o.caFile = ""
		}
	}
	if o.configFile == "" {
		return id, faults // already reported
	}
	cfg, err := keyvault.ReadConfig(o.configFile)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf(`%w; this file says how to sign in: {"useManagedIdentityExtension": true} is enough for the managed identity of the machine, and docs/configuration.md has the other ways`, err)
	}
	if err == nil {
		faults = append(faults, o.otherClouds(cfg)...)
		id.config = cfg
		id.credential, err = keyvault.NewCredential(cfg, keyvault.CredentialOptions{
			WorkloadIdentity: workloadIdentity(), CAFile: o.caFile, Proxy: o.proxy(),
			Warn: func(text string) { log.Warn("signing in: " + text) },
			Info: func(text string) { log.Info("signing in: " + text) },
		})
	}
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			faults = append(faults, "--config-file-path: "+strings.TrimRight(line, "\n"))
		}
	}
	return id, faults
}

// otherClouds are the faults of hosts that are in another cloud than azure.json.
func (o *options) otherClouds(cfg *keyvault.AzureConfig) (faults []string) {
	if err := cfg.CheckHost(o.keyURL.Host); err != nil {
		faults = append(faults, "--key-url: "+err.Error())
	}
	for _, ref := range o.decryptKeys {
		if err := cfg.CheckHost(ref.Host); err != nil {
			faults = append(faults, "--decrypt-key: "+err.Error())
		}
	}
	return faults
}

// workloadIdentity is what the workload identity webhook puts into the environment.
func workloadIdentity() keyvault.WorkloadIdentity {
	return keyvault.WorkloadIdentity{
		ClientID:  os.Getenv("AZURE_CLIENT_ID"),
		TenantID:  os.Getenv("AZURE_TENANT_ID"),
		TokenFile: os.Getenv("AZURE_FEDERATED_TOKEN_FILE"),
	}
}
