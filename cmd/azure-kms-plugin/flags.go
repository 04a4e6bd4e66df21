package main

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A flagSpec is a flag as the user sees it.
type flagSpec struct {
	name  string
	arg   string // what stands for the value in the help; empty for a switch
	def   string // the default, as the help shows it
	usage string
}

// A flagGroup is a section of the help.
type flagGroup struct {
	title string
	flags []flagSpec
}

// flagGroups is every flag. Names, defaults and meanings of those that the
// existing plugins have are theirs.
var flagGroups = []flagGroup{
	{"The key", []flagSpec{
		{"keyvault-name", "name", "", "name of the vault or Managed HSM"},
		{"key-name", "name", "", "name of the key"},
		{"key-version", "version", "", "version of the key that writes; without it, the newest one; every version is read"},
		{"managed-hsm", "", "false", "the key is in a Managed HSM"},
		{"key-url", "url", "", "the key as one URL, in place of the four flags above"},
		{"poll-interval", "duration", "", "how often the newest version is looked for (default: 1m, at most half the activation delay)"},
		{"activation-delay", "duration", "", "how long after its creation a new version begins to write, at the same moment on all nodes (default: 3m, in a Managed HSM 15m)"},
		{"decrypt-key", "url", "", "URL of a further key or version to read with; may be repeated"},
		{"key-operations", "encrypt|wrap", "encrypt", "the pair of permissions to use: encrypt and decrypt, or wrap and unwrap"},
	}},
	{"Sign-in", []flagSpec{
		{"config-file-path", "file", "/etc/kubernetes/azure.json", "the cloud provider's configuration file"},
		{"configFilePath", "file", "", "deprecated: the old name of --config-file-path"},
		{"ca-file", "file", "", "PEM file of CA certificates to trust besides the system's"},
	}},
	{"Serving kube-apiserver", []flagSpec{
		{"listen-addr", "address", "unix:///opt/azurekms.socket", "the socket: unix:///path, or unix:///@name for an abstract one"},
		{"socket-mode", "mode", "", "permissions of the socket, octal (default: 0600, or 0660 with a group)"},
		{"socket-group", "group", "", "group that owns the socket, by name or number"},
		{"ciphertext-format", "azure|openshift", "azure", "which existing plugin's format to write; both are read"},
		{"kms-api-version", "v2beta1|v2", "v2beta1", "the version string of Status; it must not change under a running kube-apiserver"},
		{"state-dir", "directory", "", "where to keep what a restart should remember (default: the socket's directory)"},
	}},
	{"Health and metrics", []flagSpec{
		{"outage-grace", "duration", "24h", "how long Status stays ok while the vault cannot be reached or used; 0 for not at all"},
		{"denial-grace", "duration", "10m", "how long Status stays ok while the vault or the sign-in host refuses this identity or network; 0 for not at all"},
		{"healthz-port", "port", "8787", "port of /livez, /healthz, /readyz, /status and the page for people; 0 turns it off"},
		{"healthz-path", "path", "/healthz", "path of the health check"},
		{"healthz-timeout", "duration", "20s", "bound of a health check"},
		{"healthz-mode", "process|key", "process", "whether the health check is about this process or fails with the key"},
		{"metrics-addr", "port|address", "8095", "where /metrics is served; 0 turns it off"},
		{"metrics-backend", "prometheus", "prometheus", "the only backend there is"},
		{"status-file", "file", "", "a file to keep the status document in, for when nobody can ask for it"},
		{"termination-log", "file", "/dev/termination-log", "where to leave the last words, if that file exists; empty for nowhere"},
	}},
	{"Proxy", []flagSpec{
		{"proxy-mode", "", "false", "send every request to a forwarding service that is named in the vault's place"},
		{"proxy-address", "host", "", "its host"},
		{"proxy-port", "port", "7788", "its port"},
	}},
	{"Output", []flagSpec{
		{"v", "level", "0", "verbosity; from 4 on, debug lines are logged"},
		{"log-format-json", "", "false", "log JSON"},
		{"version", "", "", "print the version and exit"},
	}},
}

// klogFlags are the logging flags of the existing plugins' library. They are
// accepted so that existing manifests start; the value tells the switches.
var klogFlags = map[string]bool{
	"add_dir_header": true, "alsologtostderr": true, "alsologtostderrthreshold": false,
	"legacy_stderr_threshold_behavior": true, "log_backtrace_at": false, "log_dir": false,
	"log_file": false, "log_file_max_size": false, "logtostderr": true, "one_output": true,
	"skip_headers": true, "skip_log_headers": true, "stderrthreshold": false, "vmodule": false,
}

// flagValues are the values given on a command line, in order, by flag.
type flagValues map[string][]string

// collector is the flag.Value of a flag whose values are judged later, so that
// all faults of a command line can be reported together.
type collector struct {
	name   string
	toggle bool
	values flagValues
}

func (c collector) String() string   { return "" }
func (c collector) IsBoolFlag() bool { return c.toggle }

func (c collector) Set(s string) error {
	c.values[c.name] = append(c.values[c.name], s)
	return nil
}

// scan splits a command line into flags and their values. The faults name no
// value that might be a secret put in the wrong place.
func scan(args []string, further ...flagSpec) (values flagValues, faults []string) {
	values = make(flagValues)
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	for _, g := range flagGroups {
		for _, f := range g.flags {
			fs.Var(collector{f.name, f.arg == "", values}, f.name, f.usage)
		}
	}
	for _, f := range further {
		fs.Var(collector{f.name, f.arg == "", values}, f.name, f.usage)
	}
	for name, toggle := range klogFlags {
		fs.Var(collector{name, toggle, values}, name, "")
	}
	for _, name := range []string{"h", "help"} {
		fs.Var(collector{name, true, values}, name, "")
	}
	// Parse stops at the first thing it does not like; go on behind it.
	skipValue := false
	for rest := args; len(rest) > 0; {
		before := rest
		err := fs.Parse(rest)
		rest = fs.Args()
		switch {
		case err == nil && len(rest) == 0:
		case err == nil:
			switch name := switchBefore(fs, before[:len(before)-len(rest)]); {
			case skipValue && len(rest) == len(before):
			case name != "" && isBool(rest[0]):
				faults = append(faults, fmt.Sprintf("--%s: its value %s stands apart: write --%s=%s", name, rest[0], name, rest[0]))
			default:
				faults = append(faults, fmt.Sprintf("%q is not a flag: flags begin with - or --", cut(rest[0])))
			}
			rest = rest[1:]
		case len(rest) == 0 && strings.HasPrefix(err.Error(), "flag needs an argument"):
			faults = append(faults, fmt.Sprintf("--%s: needs a value", flagName(before[len(before)-1])))
		case strings.HasPrefix(err.Error(), "bad flag syntax"):
			faults = append(faults, fmt.Sprintf("%q is not a flag: write --name=value", cut(rest[0])))
			rest = rest[1:]
		default:
			arg := before[len(before)-len(rest)-1]
			faults = append(faults, fmt.Sprintf("--%s: there is no such flag", flagName(arg)))
			// What follows is probably its value.
			skipValue = !strings.Contains(arg, "=")
			continue
		}
		skipValue = false
	}
	return values, faults
}

// switchBefore returns the switch that ends a part of a command line without a value.
func switchBefore(fs *flag.FlagSet, args []string) string {
	if len(args) == 0 || strings.Contains(args[len(args)-1], "=") {
		return ""
	}
	name := flagName(args[len(args)-1])
	if f := fs.Lookup(name); f == nil || !f.Value.(collector).toggle {
		return ""
	}
	return name
}

func isBool(s string) bool {
	_, err := strconv.ParseBool(s)
	return err == nil
}

func flagName(arg string) string {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	return name
}

// cut leaves out what follows an equals sign, which may be a secret.
func cut(arg string) string {
	if name, _, ok := strings.Cut(arg, "="); ok {
		return name + "="
	}
	return arg
}

// defaultOf returns the default of a flag as the help shows it.
func defaultOf(name string) string {
	for _, g := range flagGroups {
		if i := slices.IndexFunc(g.flags, func(f flagSpec) bool { return f.name == name }); i >= 0 {
			return g.flags[i].def
		}
	}
	return ""
}

// printUsage writes the help.
func printUsage(w io.Writer) {
	fmt.Fprint(w, `azure-kms-plugin serves the Kubernetes KMS v2 API from a key in Azure Key Vault
or Managed HSM.

Usage:
  azure-kms-plugin [serve] [flags]
  azure-kms-plugin status [flags] [URL | HOST:PORT | FILE ...]
  azure-kms-plugin doctor [flags]
  azure-kms-plugin version

status shows how plugins are; doctor finds out what keeps one from its key. Each
has --help. The flags below are those of serve, which doctor takes too.

Flags are written -name=value or --name=value.
`)
	for _, g := range flagGroups {
		fmt.Fprintf(w, "\n%s:\n", g.title)
		printFlags(w, g.flags)
	}
	fmt.Fprint(w, `
The logging flags of klog are accepted and ignored.

Exit status of serve: 0 stopped when asked to, 1 ended by a fault while serving, 64 wrong use.
`)
}

func printFlags(w io.Writer, flags []flagSpec) {
	for _, f := range flags {
		head := "--" + f.name
		if f.arg != "" {
			head += "=" + f.arg
		}
		usage := f.usage
		if f.arg != "" && f.def != "" {
			usage += " (default " + f.def + ")"
		}
		fmt.Fprintf(w, "  %s\n        %s\n", head, usage)
	}
}
