package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"azure-kms-plugin/keyvault"
)

// checkEnvironment finds what is wrong with the variables that the Go runtime
// and its libraries read by themselves. The faults show no value: a proxy's may
// hold a password.
func checkEnvironment() (faults []string) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		// Go ignores what it cannot read, and would go direct.
		if !isProxy(os.Getenv(name)) {
			faults = append(faults, name+": is not the URL of a proxy, such as http://proxy.example:3128; a % or @ in a password is written %25 or %40")
		}
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		if !isNoProxy(os.Getenv(name)) {
			faults = append(faults, name+": is not a list of host names, addresses and networks with commas between them")
		}
	}
	if strings.Contains(os.Getenv("GODEBUG"), "http2debug") {
		// It prints the headers of every request, tokens among them.
		faults = append(faults, "GODEBUG: http2debug shows secrets in the log: unset it")
	}
	return faults
}

// localWarnings are what on this machine is likely to be a mistake, but need not be.
func localWarnings(o options, cfg *keyvault.AzureConfig) (warnings []string) {
	// Go looks into the system's folders too, and --ca-file may have all that is needed.
	if path := os.Getenv("SSL_CERT_FILE"); path != "" {
		if err := keyvault.CheckCAFile(path); err != nil {
			warnings = append(warnings, "SSL_CERT_FILE: "+err.Error())
		}
	}
	if info, err := os.Stat(o.configFile); err == nil && info.Mode().Perm()&0o007 != 0 && cfg.HoldsSecrets() {
		warnings = append(warnings, fmt.Sprintf("%s is open to every user of this machine (mode %04o), with the secret in it: make it 0600, or 0640 for a group that needs it",
			o.configFile, info.Mode().Perm()))
	}
	odd := func(flag, host string) {
		if _, known := keyvault.CloudOf(host); host != "" && !known {
			warnings = append(warnings, fmt.Sprintf("--%s: %s is in no cloud that this program knows: if it is not meant, write the vault's public name, such as name.vault.azure.net, which is that of its private endpoint too", flag, host))
		}
	}
	odd("key-url", o.keyURL.Host)
	for _, ref := range o.decryptKeys {
		odd("decrypt-key", ref.Host)
	}
	if dir := o.memoryDir(); dir != "" {
		if err := checkDir(dir); err != nil {
			warnings = append(warnings, fmt.Sprintf("--state-dir: no file can be made in %s (%v): nothing is remembered over a restart until uid %d, gid %d can write there", dir, err, os.Geteuid(), os.Getegid()))
		}
	}
	return append(warnings, cfg.Unused()...)
}

// checkDir reports why no file can be made in a directory. Nothing is written: what is
// kept there comes only when the key has been used.
func checkDir(dir string) error {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return syscall.ENOTDIR
	}
	const write, enter = 2, 1
	return syscall.Access(dir, write|enter)
}

// proxySchemes are those that net/http speaks.
var proxySchemes = []string{"http", "https", "socks5", "socks5h"}

// isProxy reports whether net/http would understand s, which may lack a scheme,
// as it was meant: of a URL that is wrong, it makes a host with the name "http".
func isProxy(s string) bool {
	if s == "" {
		return true
	}
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || !slices.Contains(proxySchemes, u.Scheme) || u.Hostname() == "" {
		return false
	}
	if port := u.Port(); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		return err == nil && n > 0
	}
	return true
}

func isNoProxy(s string) bool {
	for entry := range strings.SplitSeq(s, ",") {
		entry = strings.TrimSpace(entry)
		if strings.ContainsFunc(entry, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }) {
			return false
		}
		if !strings.Contains(entry, "/") {
			continue
		}
		if _, _, err := net.ParseCIDR(entry); err != nil {
			return false
		}
	}
	return true
}
