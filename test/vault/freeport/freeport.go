// Package freeport finds TCP ports for programs that must be told one.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports to choose from: above those of well-known services and below
// those that Linux takes for outgoing connections (from 32768 on, see
// ip_local_port_range). Asking the system for port 0 gives one of the latter,
// and any connection of another test may have it before the program does.
const (
	first = 10000
	last  = 32000
)

// Find returns a port of the loopback on which nobody listens. Nothing is
// reserved: two callers may be given the same, if seldom.
func Find() (int, error) {
	for range 100 {
		port := first + rand.IntN(last-first)
		// All interfaces, since programs under test listen there.
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("no free port among a hundred tried")
}
