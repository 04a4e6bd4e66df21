package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	azlog "github.com/Azure/azure-sdk-for-go/sdk/azcore/log"
	"go.uber.org/zap"

	"azure-kms-plugin/health/console"
	"azure-kms-plugin/health/doctor"
	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// doctorFlags are those of the doctor command beside those of serve.
var doctorFlags = []flagSpec{
	{"output", "table|json", "table", "how to show it; -o is short for it"},
	{"timeout", "duration", "30s", "how long it may take in all"},
}

// runDoctor finds out what keeps a plugin with these flags from its key. What serve
// would not start with ends it in the same way.
func runDoctor(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	azlog.SetListener(nil)
	o, r := parseWith(args, append([]flagSpec{{name: "o", arg: "table|json"}}, doctorFlags...)...)
	switch {
	case o.help:
		printDoctorUsage(stdout)
		return exitOK
	case o.version:
		fmt.Fprintln(stdout, versionLine(build()))
		return exitOK
	}
	r.values["output"] = slices.Concat(r.values["output"], r.values["o"])
	own := &commandReader{reader: *r, flags: doctorFlags}
	output, timeout := own.choice("output", "table", "json"), own.duration("timeout")
	silent := loggers{main: zap.NewNop(), rotation: zap.NewNop(), dropped: new(atomic.Uint64)}
	_, id, faults := plan(o, own.faults, "see azure-kms-plugin doctor --help", silent)
	if len(faults) == 0 {
		faults = checkPorts(o)
	}
	if len(faults) > 0 {
		complain(stderr, faults)
		return exitUsage
	}
	cfg, err := o.doctor(id)
	if err != nil {
		complain(stderr, []string{err.Error()})
		return exitUsage
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	report := doctor.Walk(ctx, cfg)
	if output == "json" {
		if err := console.WriteJSON(stdout, report); err != nil {
			complain(stderr, []string{err.Error()})
			return status.ExitUnknown
		}
		return report.ExitStatus
	}
	report.WriteTable(stdout)
	return report.ExitStatus
}

// doctor wires the walk as serve wires the plugin.
func (o options) doctor(id identity) (doctor.Config, error) {
	key := o.key(id.config.Cloud())
	cfg := doctor.Config{
		Files:  o.examined(id, key),
		Key:    key,
		Tokens: &doctor.Tokens{Source: id.credential, Method: id.config.Method()},
		Socket: o.address.Path,
	}
	poll := o.pollInterval
	cfg.ActivationDelay = o.activationDelay
	if err := keyvault.CheckPace(key, &poll, &cfg.ActivationDelay); err != nil {
		return cfg, err
	}
	var err error
	if cfg.Vault, err = keyvault.NewClient(keyvault.ClientConfig{
		Credential: cfg.Tokens, CAFile: o.caFile, Proxy: o.proxy(), Wrap: o.wrap,
		UserAgent: "azure-kms-plugin-doctor/" + build().Version,
	}); err != nil {
		return cfg, err
	}
	if cfg.Way, err = keyvault.NewReach(keyvault.ReachConfig{Host: key.Host, CAFile: o.caFile, Proxy: o.proxy()}); err != nil {
		return cfg, err
	}
	if cfg.SignInHost = id.credential.SignInHost(); cfg.SignInHost != "" {
		cfg.SignIn, err = keyvault.NewReach(keyvault.ReachConfig{Host: cfg.SignInHost, SignIn: true, CAFile: o.caFile, Proxy: o.proxy()})
	}
	return cfg, err
}

// examined is what reading flags and files has shown.
func (o options) examined(id identity, key keyvault.Ref) []doctor.Step {
	what := key.URL()
	if key.Version == "" {
		what += ", the newest version"
	}
	what = fmt.Sprintf("%s; sign-in with a %s, by %s", what, id.config.Method(), o.configFile)
	if o.caFile != "" {
		what += "; " + o.caFile + " is trusted too"
	}
	steps := []doctor.Step{{Name: doctor.Files, State: doctor.OK, Text: what}}
	for _, w := range o.warnings {
		steps = append(steps, doctor.Step{Name: doctor.Files, State: doctor.Note, Text: w})
	}
	for _, w := range localWarnings(o, id.config) {
		steps = append(steps, doctor.Step{Name: doctor.Files, State: doctor.Warn, Text: w})
	}
	return steps
}

func printDoctorUsage(w io.Writer) {
	fmt.Fprint(w, `azure-kms-plugin doctor finds out what keeps a plugin from its key. It takes the
flags of serve, goes the way of a request step by step, and says at each what it saw
and at the first failure what to do. It changes nothing, and may run beside a plugin.

Usage:
  azure-kms-plugin doctor [flags of serve] [flags]

Steps: `+strings.Join(doctorSteps(), ", ")+`.

`)
	printFlags(w, doctorFlags)
	fmt.Fprint(w, `
Exit status: 0 all is well; 1 it works, but somebody has to act, or the key decrypts
and does not encrypt; 2 the key is lost or access to it is refused; 3 cannot tell,
because something does not answer; 64 wrong use, as for serve.
`)
}

// doctorSteps are the steps of a walk that meets no trouble.
func doctorSteps() (names []string) {
	for _, n := range []doctor.Name{
		doctor.Files, doctor.DNS, doctor.TCP, doctor.TLS, doctor.Clock, doctor.Token,
		doctor.Attributes, doctor.Validity, doctor.Encrypt, doctor.Decrypt, doctor.Socket,
	} {
		names = append(names, string(n))
	}
	return names
}
