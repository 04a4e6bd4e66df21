package main

import (
	"net"
	"net/netip"
	"strings"
)

// hasPort reports whether s is a host and a port.
func hasPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	return err == nil && isHost(host) && strings.Trim(port, "0123456789") == ""
}

// isHost reports whether s is a host name or an IP address, bare.
func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return s != "" && strings.IndexFunc(s, func(c rune) bool {
		return !('0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || strings.ContainsRune("-._", c))
	}) < 0
}
