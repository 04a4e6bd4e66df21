package main

import (
	"fmt"
	"io/fs"
	"math"
	"net"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

// options is a command line that was understood.
type options struct {
	help, version bool

	vault, keyName, keyVersion string // keyURL is set instead of these
	managedHSM                 bool
	keyURL                     keyvault.Ref
	decryptKeys                []keyvault.Ref
	wrap                       bool

	configFile string
	caFile     string

	listenAddr  string
	address     plugin.Address // listenAddr, read
	socketMode  fs.FileMode    // zero for the plugin's default
	socketGroup string
	format      plugin.Format
	apiVersion  string
	stateDir    string

	healthzAddr    string // empty for off
	healthzPath    string
	healthzTimeout time.Duration
	followKey      bool
	metricsAddr    string // empty for off

	proxyAddress string // empty for off
	proxyPort    int

	verbosity int
	json      bool

	warnings []string
}

// reader takes values out of a command line and collects what is wrong with them.
type reader struct {
	values flagValues
	faults []string
}

func (r *reader) fault(flag, format string, args ...any) {
	r.faults = append(r.faults, "--"+flag+": "+fmt.Sprintf(format, args...))
}

func (r *reader) given(flag string) bool { return len(r.values[flag]) > 0 }

// clean removes what templates and shells leave around a value: white space,
// line ends and double quotes, in any nesting.
func clean(s string) string {
	return strings.TrimFunc(s, func(c rune) bool { return unicode.IsSpace(c) || c == '"' })
}

// text returns the last value of a flag, cleaned, or its default. A value that
// is there but empty is a fault: whoever wrote it meant something. After a
// fault it returns "", which no check complains about again.
func (r *reader) text(flag string) string {
	v := r.values[flag]
	if len(v) == 0 {
		return defaultOf(flag)
	}
	s := clean(v[len(v)-1])
	if !r.checkText(flag, s) {
		return ""
	}
	return s
}

func (r *reader) checkText(flag, s string) bool {
	switch {
	case s == "":
		r.fault(flag, "is given but empty")
	case strings.HasPrefix(s, "'") || strings.HasSuffix(s, "'"):
		r.fault(flag, "%q has single quotes around it: remove them", s)
	default:
		return true
	}
	return false
}

func (r *reader) toggle(flag string) bool {
	if !r.given(flag) {
		return false
	}
	s := clean(r.values[flag][len(r.values[flag])-1])
	on, err := strconv.ParseBool(s)
	if err != nil {
		r.fault(flag, "%q is neither true nor false", s)
	}
	return on
}

func (r *reader) number(flag string, low, high int) int {
	s := r.text(flag)
	n, err := strconv.Atoi(s)
	switch {
	case s == "":
	case err != nil:
		r.fault(flag, "%q is not a whole number", s)
	case n < low || n > high:
		r.fault(flag, "%d is not between %d and %d", n, low, high)
	}
	return n
}

func (r *reader) oneOf(flag string, allowed ...string) string {
	s := r.text(flag)
	if s != "" && !slices.Contains(allowed, s) {
		r.fault(flag, "%q is none of %s", s, strings.Join(allowed, ", "))
	}
	return s
}

// parse reads the flags of the serving command. It returns every fault, one a line.
func parse(args []string) (o options, faults []string) {
	values, faults := scan(args)
	r := &reader{values: values, faults: faults}
	o.help = r.given("h") || r.given("help")
	o.version = r.toggle("version")
	o.readKey(r)
	o.readFiles(r)
	o.readSocket(r)
	o.readPorts(r)
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
	return o, r.faults
}

// triplet are the flags that --key-url takes the place of.
var triplet = []string{"keyvault-name", "key-name", "key-version"}

func (o *options) readKey(r *reader) {
	o.managedHSM = r.toggle("managed-hsm")
	o.wrap = r.oneOf("key-operations", "encrypt", "wrap") == "wrap"
	if r.given("key-url") {
		o.keyURL = r.keyURL("key-url", r.values["key-url"][len(r.values["key-url"])-1])
		for _, flag := range append(triplet, "managed-hsm") {
			if r.given(flag) {
				r.fault(flag, "--key-url says the same: give one or the other")
			}
		}
		if o.keyURL.Name != "" && o.keyURL.Version == "" {
			r.fault("key-url", "has no key version: %s", versionNeeded)
		}
	} else {
		o.vault, o.keyName = r.required("keyvault-name"), r.required("key-name")
		if o.vault != "" && !isVaultName(o.vault) {
			r.fault("keyvault-name", "%q is not the name of a vault: 3 to 24 letters, digits and dashes", o.vault)
		}
		if err := (keyvault.Ref{Host: "vault.example", Name: o.keyName}).Validate(); o.keyName != "" && err != nil {
			r.fault("key-name", "%v", err)
		}
		o.readVersion(r)
	}
	for _, v := range r.values["decrypt-key"] {
		if ref := r.keyURL("decrypt-key", v); ref.Name != "" {
			o.decryptKeys = append(o.decryptKeys, ref)
		}
	}
}

const versionNeeded = "name the version that writes"

// readVersion reads --key-version. That it must be there is decided here and
// in the check of --key-url's version, and nowhere else.
func (o *options) readVersion(r *reader) {
	if !r.given("key-version") {
		r.fault("key-version", "is required: %s", versionNeeded)
		return
	}
	o.keyVersion = r.text("key-version")
	// No version is none to complain about.
	if err := (keyvault.Ref{Host: "vault.example", Name: "key", Version: o.keyVersion}).Validate(); err != nil {
		r.fault("key-version", "%v", err)
	}
}

func (r *reader) required(flag string) string {
	if !r.given(flag) {
		r.fault(flag, "is required (or --key-url)")
		return ""
	}
	return r.text(flag)
}

// keyURL reads a key URL. One with a user or a query is refused without being
// quoted: what is there may be a password.
func (r *reader) keyURL(flag, value string) keyvault.Ref {
	s := clean(value)
	if !r.checkText(flag, s) {
		return keyvault.Ref{}
	}
	if strings.ContainsAny(s, "@?#") {
		r.fault(flag, "is not a key URL: write https://<vault host>/keys/<name>/<version>, without user, query or fragment")
		return keyvault.Ref{}
	}
	ref, err := keyvault.ParseURL(s)
	if err != nil {
		r.fault(flag, "%v", err)
		return keyvault.Ref{}
	}
	return ref
}

func isVaultName(s string) bool {
	return len(s) >= 3 && len(s) <= 24 && strings.IndexFunc(s, func(c rune) bool {
		return !('0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || c == '-')
	}) < 0
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
	if o.socketGroup != "" {
		if err := checkGroup(o.socketGroup); err != nil {
			r.fault("socket-group", "%v", err)
		}
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

// checkGroup looks a group up before anything is bound.
func checkGroup(s string) error {
	if n, err := strconv.ParseUint(s, 10, 32); err == nil && n < math.MaxUint32 {
		return nil
	}
	if _, err := user.LookupGroup(s); err != nil {
		return fmt.Errorf("%q is no group on this machine (an image may have no group file): write its number", s)
	}
	return nil
}

func (r *reader) mode(flag, s string) fs.FileMode {
	bits, err := strconv.ParseUint(s, 8, 32)
	switch {
	case err != nil || bits > 0o777:
		r.fault(flag, "%q is not an octal mode such as 0600 or 0660", s)
	case bits&0o007 != 0:
		r.fault(flag, "%s lets every user of the node decrypt everything: write 0600, or 0660 with --socket-group", s)
	case bits&0o600 != 0o600:
		r.fault(flag, "%s keeps this process from its own socket: write 0600 or 0660", s)
	}
	return fs.FileMode(bits)
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
	case !strings.HasPrefix(o.healthzPath, "/") || strings.ContainsAny(o.healthzPath, " ?#{}%") || strings.Contains(o.healthzPath, "//"):
		r.fault("healthz-path", "%q is not a path such as /healthz", o.healthzPath)
	case o.healthzPath == "/livez" || o.healthzPath == "/readyz":
		r.fault("healthz-path", "%s is an endpoint of its own: choose another path", o.healthzPath)
	}
	timeout := r.text("healthz-timeout")
	d, err := time.ParseDuration(timeout)
	if timeout != "" && (err != nil || d <= 0) {
		r.fault("healthz-timeout", "%q is not a duration such as 20s", timeout)
	}
	o.healthzTimeout = d
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

// metricsAddr reads --metrics-addr: a bare port on all interfaces, as the
// existing plugins take it, or host:port.
func (r *reader) metricsAddr() string {
	s := r.text("metrics-addr")
	if s == "" || s == "0" {
		return ""
	}
	addr := s
	if !strings.Contains(s, ":") {
		addr = ":" + s
	}
	host, port, err := net.SplitHostPort(addr)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil {
		r.fault("metrics-addr", "%q is neither a port nor an address such as 127.0.0.1:8095", s)
		return ""
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10))
}

func (o *options) readProxy(r *reader) {
	on := r.toggle("proxy-mode")
	o.proxyPort = r.number("proxy-port", 1, 65535)
	if !on {
		return
	}
	if !r.given("proxy-address") {
		r.fault("proxy-address", "is required with --proxy-mode")
		return
	}
	o.proxyAddress = clean(r.values["proxy-address"][len(r.values["proxy-address"])-1])
	// Not quoted: an address with credentials in it must not reach a log.
	if o.proxyAddress == "" || strings.ContainsAny(o.proxyAddress, "/@?# ") || strings.Contains(o.proxyAddress, "://") {
		r.fault("proxy-address", "is not a host name or IP address")
	}
}

// key returns the version that writes, in the cloud that azure.json names.
func (o *options) key(cloud keyvault.Cloud) keyvault.Ref {
	if o.keyURL.Name != "" {
		return o.keyURL
	}
	return keyvault.Ref{Host: cloud.VaultHost(o.vault, o.managedHSM), Name: o.keyName, Version: o.keyVersion}
}
