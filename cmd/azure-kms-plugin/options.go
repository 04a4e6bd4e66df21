package main

import (
	"io/fs"
	"math"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

// keyStateGrace is the default in package health of what no flag sets.
const keyStateGrace = 15 * time.Second

// options is a command line that was understood.
type options struct {
	help, version bool

	vault, keyName, keyVersion string // keyURL is set instead of these
	managedHSM                 bool
	keyURL                     keyvault.Ref
	decryptKeys                []keyvault.Ref
	wrap                       bool
	pollInterval               time.Duration // zero for the default
	activationDelay            time.Duration // zero for the default

	configFile string
	caFile     string

	listenAddr  string
	address     plugin.Address // listenAddr, read
	socketMode  fs.FileMode    // zero for the plugin's default
	socketGroup string
	format      plugin.Format
	apiVersion  string
	stateDir    string

	outageGrace, denialGrace time.Duration // zero for at once

	healthzAddr    string // empty for off
	healthzPath    string
	healthzTimeout time.Duration
	followKey      bool
	metricsAddr    string // empty for off
	statusFile     string // empty for none
	terminationLog string // empty for none

	proxyAddress string // empty for off
	proxyPort    int

	verbosity int
	json      bool

	warnings []string
}

// parse reads the flags of the serving command. It returns every fault, one a line.
func parse(args []string) (o options, faults []string) {
	o, r := parseWith(args)
	return o, r.faults
}

// parseWith is parse for a command that has further flags, whose values are in the reader.
func parseWith(args []string, further ...flagSpec) (o options, r *reader) {
	values, faults := scan(args, further...)
	r = &reader{values: values, faults: faults}
	o.help = r.toggle("h") || r.toggle("help")
	o.version = r.toggle("version")
	o.readKey(r)
	o.readFiles(r)
	o.readSocket(r)
	o.outageGrace, o.denialGrace = r.grace("outage-grace"), r.grace("denial-grace")
	o.readPorts(r)
	o.readStatus(r)
	o.readProxy(r)
	o.verbosity = r.number("v", math.MinInt32, math.MaxInt32)
	o.json = r.toggle("log-format-json")

	var ignored []string
	for name := range klogFlags {
		if r.given(name) {
			ignored = append(ignored, "--"+name)
		}
	}
	if len(ignored) > 0 {
		slices.Sort(ignored)
		o.warnings = append(o.warnings, "logging flags of klog are ignored: "+strings.Join(ignored, ", "))
	}
	return o, r
}

// triplet are the flags that --key-url takes the place of.
var triplet = []string{"keyvault-name", "key-name", "key-version"}

func (o *options) readKey(r *reader) {
	o.managedHSM = r.toggle("managed-hsm")
	o.wrap = r.oneOf("key-operations", "encrypt", "wrap") == "wrap"
	if r.given("key-url") {
		o.keyURL = r.keyURL("key-url", r.values["key-url"][len(r.values["key-url"])-1])
		for _, flag := range triplet {
			if r.given(flag) {
				r.fault(flag, "--key-url names the key already: give one or the other")
			}
		}
		switch hsm := o.keyURL.IsHSM(); {
		case !r.given("managed-hsm") || o.keyURL.Host == "":
		case hsm == o.managedHSM:
			r.fault("managed-hsm", "the host of --key-url says the same: leave this flag out")
		default:
			r.fault("managed-hsm", "the host of --key-url, %s, says the opposite: leave this flag out, if the URL is right", o.keyURL.Host)
		}
	} else {
		o.vault, o.keyName = r.required("keyvault-name"), r.required("key-name")
		if o.vault != "" && !keyvault.IsVaultName(o.vault) {
			r.fault("keyvault-name", "%q is not the name of a vault: 3 to 24 letters, digits and dashes, the dash neither first nor last, without the domain", o.vault)
		}
		if err := (keyvault.Ref{Host: "vault.example", Name: o.keyName}).Validate(); o.keyName != "" && err != nil {
			r.fault("key-name", "%v", err)
		}
		o.readVersion(r)
	}
	o.readPace(r)
	for _, v := range r.values["decrypt-key"] {
		if ref := r.keyURL("decrypt-key", v); ref.Name != "" {
			o.decryptKeys = append(o.decryptKeys, ref)
		}
	}
}

// readVersion reads --key-version. Without it the newest version is followed,
// but a version that was given and came to nothing is a mistake.
func (o *options) readVersion(r *reader) {
	if !r.given("key-version") {
		return
	}
	o.keyVersion = r.text("key-version")
	// No version is none to complain about.
	if err := (keyvault.Ref{Host: "vault.example", Name: "key", Version: o.keyVersion}).Validate(); err != nil {
		r.fault("key-version", "%v", err)
	}
}

// readPace reads how the newest version is followed.
func (o *options) readPace(r *reader) {
	pace := []string{"poll-interval", "activation-delay"}
	o.pollInterval, o.activationDelay = r.duration(pace[0]), r.duration(pace[1])
	if !o.following() {
		for _, flag := range pace {
			if r.given(flag) {
				o.warnings = append(o.warnings, "--"+flag+" is not used: the key's version is given, so it never changes")
			}
		}
		return
	}
	public, _ := keyvault.ParseCloud("") // whether it is a Managed HSM is the same in all
	poll, delay := o.pollInterval, o.activationDelay
	if err := keyvault.CheckPace(o.key(public), &poll, &delay); err != nil {
		r.fault("poll-interval", "%v", err)
	}
}

// following reports whether the newest version is to be followed.
func (o *options) following() bool {
	if o.keyURL.Name != "" {
		return o.keyURL.Version == ""
	}
	return o.keyVersion == ""
}

func (o *options) readFiles(r *reader) {
	o.configFile = r.text("config-file-path")
	if r.given("configFilePath") {
		old := r.text("configFilePath")
		if r.given("config-file-path") {
			o.warnings = append(o.warnings, "--configFilePath is deprecated and not used: --config-file-path is given too")
		} else {
			o.configFile = old
			o.warnings = append(o.warnings, "--configFilePath is deprecated: write --config-file-path")
		}
	}
	o.caFile = r.text("ca-file")
}

func (o *options) readSocket(r *reader) {
	if s := r.text("listen-addr"); s != "" {
		addr, err := plugin.ParseAddress(s)
		if err != nil {
			r.fault("listen-addr", "%v", err)
		}
		o.listenAddr, o.address = s, addr
	}
	o.socketGroup = r.text("socket-group")
	if _, err := plugin.ParseGroup(o.socketGroup); err != nil {
		r.fault("socket-group", "%v", err)
	}
	if s := r.text("socket-mode"); s != "" {
		o.socketMode = r.mode("socket-mode", s)
	}
	format, err := plugin.ParseFormat(r.text("ciphertext-format"))
	if err != nil {
		r.fault("ciphertext-format", "%v", err)
	}
	o.format = format
	o.apiVersion = r.oneOf("kms-api-version", "v2beta1", "v2")
	o.stateDir = r.text("state-dir")
}

func (o *options) readPorts(r *reader) {
	healthz := r.number("healthz-port", 0, 65535)
	if healthz != 0 {
		// kubelet probes by the pod's address.
		o.healthzAddr = net.JoinHostPort("", strconv.Itoa(healthz))
	}
	o.healthzPath = r.text("healthz-path")
	switch {
	case o.healthzPath == "":
	case !isPath(o.healthzPath):
		r.fault("healthz-path", "%q is not a path such as /healthz, without empty, . or .. parts", o.healthzPath)
	case o.healthzPath == "/livez" || o.healthzPath == "/readyz":
		r.fault("healthz-path", "%s is an endpoint of its own: choose another path", o.healthzPath)
	case o.healthzPath == "/status":
		o.warnings = append(o.warnings, "--healthz-path=/status takes the place of the status document on this port: choose another path, or read --status-file")
	}
	o.healthzTimeout = r.duration("healthz-timeout")
	o.followKey = r.oneOf("healthz-mode", "process", "key") == "key"
	if s := r.text("metrics-backend"); s != "" && !strings.EqualFold(s, "prometheus") {
		r.fault("metrics-backend", "%q is not supported: prometheus is the only one", s)
	}
	o.metricsAddr = r.metricsAddr()
	if o.healthzAddr != "" && o.metricsAddr != "" {
		if _, port, _ := net.SplitHostPort(o.metricsAddr); port == strconv.Itoa(healthz) {
			r.fault("metrics-addr", "port %s is that of --healthz-port too: give each its own", port)
		}
	}
}

// graces are the two flags as package health wants them, where zero is the default.
// A key that is disabled or gone is borne no longer than a refusal to use it.
func (o *options) graces() health.Graces {
	atOnce := func(d time.Duration) time.Duration {
		if d == 0 {
			return -1
		}
		return d
	}
	g := health.Graces{Outage: atOnce(o.outageGrace), Denial: atOnce(o.denialGrace)}
	if o.denialGrace < keyStateGrace {
		g.KeyState = g.Denial
	}
	return g
}

// isPath reports whether a request for s gets to a handler of s: the server
// redirects one that is not clean.
func isPath(s string) bool {
	if !strings.HasPrefix(s, "/") || strings.ContainsAny(s, "?#{}%") {
		return false
	}
	if strings.ContainsFunc(s, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }) {
		return false
	}
	cleaned := path.Clean(s)
	return s == cleaned || s == cleaned+"/"
}

func (o *options) readProxy(r *reader) {
	on := r.toggle("proxy-mode")
	o.proxyPort = r.number("proxy-port", 1, 65535)
	if !on {
		if r.given("proxy-address") || r.given("proxy-port") {
			o.warnings = append(o.warnings, "--proxy-address and --proxy-port are not used: --proxy-mode is not on")
		}
		return
	}
	if !r.given("proxy-address") {
		r.fault("proxy-address", "is required with --proxy-mode")
		return
	}
	address := clean(r.values["proxy-address"][len(r.values["proxy-address"])-1])
	switch {
	// Not quoted: an address with credentials in it must not reach a log.
	case strings.ContainsAny(address, "[]"):
		r.fault("proxy-address", "has brackets: write the IPv6 address without them, and the port as --proxy-port")
	case hasPort(address):
		r.fault("proxy-address", "has a port: write that as --proxy-port")
	case !isHost(address):
		r.fault("proxy-address", "is not a host name or IP address")
	case o.proxyPort >= 1 && o.proxyPort <= 65535:
		o.proxyAddress = address
	}
}

// key returns the version that writes, or the key to follow, in the cloud that
// azure.json names.
func (o *options) key(cloud keyvault.Cloud) keyvault.Ref {
	if o.keyURL.Name != "" {
		return o.keyURL
	}
	return keyvault.Ref{Host: cloud.VaultHost(o.vault, o.managedHSM), Name: o.keyName, Version: o.keyVersion}
}
