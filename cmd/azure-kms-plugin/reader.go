package main

import (
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

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

// duration returns zero for a flag without value and default, and after a fault.
func (r *reader) duration(flag string) time.Duration {
	s := r.text(flag)
	d, err := time.ParseDuration(s)
	switch {
	case s == "":
	case err != nil:
		r.fault(flag, "%q is not a duration such as 20s", s)
		return 0
	case d <= 0:
		r.fault(flag, "%s must be more than 0", s)
		return 0
	}
	return d
}

// maxGrace is far more than a grace can help: kube-apiserver forgets the seeds of
// others after a day. What is longer is more likely a wrong unit.
const maxGrace = 7 * 24 * time.Hour

// grace reads how long a failure is borne; zero is a value like others. After a
// fault it returns zero.
func (r *reader) grace(flag string) time.Duration {
	s := r.text(flag)
	d, err := time.ParseDuration(s)
	switch {
	case s == "":
	case err != nil:
		r.fault(flag, "%q is not a duration such as 10m, or 0", s)
	case d < 0:
		r.fault(flag, "%s is less than 0, which already means not at all", s)
	case d > maxGrace:
		r.fault(flag, "%s is more than %s, which is 7 days", s, maxGrace)
	default:
		return d
	}
	return 0
}

func (r *reader) oneOf(flag string, allowed ...string) string {
	s := r.text(flag)
	if s != "" && !slices.Contains(allowed, s) {
		r.fault(flag, "%q is none of %s", s, strings.Join(allowed, ", "))
	}
	return s
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
		r.fault(flag, "is not a key URL: write %s, without user, query or fragment", keyvault.URLForm)
		return keyvault.Ref{}
	}
	ref, err := keyvault.ParseURL(s)
	if err != nil {
		r.fault(flag, "%v", err)
		return keyvault.Ref{}
	}
	return ref
}

func (r *reader) mode(flag, s string) fs.FileMode {
	bits, err := strconv.ParseUint(s, 8, 32)
	mode := fs.FileMode(bits)
	if err != nil || bits > 0o777 {
		r.fault(flag, "%q is not an octal mode such as 0600 or 0660", s)
	} else if err := plugin.CheckMode(mode); err != nil {
		r.fault(flag, "%v", err)
	}
	return mode
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
