package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// listeners are the TCP ports; nil where one is switched off.
type listeners struct {
	healthz, metrics net.Listener
}

// ports calls f with each port that is not switched off, by its flag.
func (o options) ports(f func(flag, addr string)) {
	for _, p := range []struct{ flag, addr string }{{"healthz-port", o.healthzAddr}, {"metrics-addr", o.metricsAddr}} {
		if p.addr != "" {
			f(p.flag, p.addr)
		}
	}
}

// listen binds the TCP ports. A port that is taken is reported with its flag.
func listen(o options) (l listeners, faults []string) {
	o.ports(func(flag, addr string) {
		ln, err := (&net.ListenConfig{Control: deferAccept}).Listen(context.Background(), "tcp", addr)
		switch {
		case err != nil:
			faults = append(faults, portFault(flag, addr, err))
		case flag == "healthz-port":
			l.healthz = ln
		default:
			l.metrics = ln
		}
	})
	return l, faults
}

// checkPorts finds the ports that listen could never bind: the address is another
// machine's, or the port is for root. It tries the same by UDP, so that it is in nobody's
// way; a port that is in use is no fault, as a plugin may have it.
func checkPorts(o options) (faults []string) {
	o.ports(func(flag, addr string) {
		conn, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", addr)
		switch {
		case err == nil:
			conn.Close()
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EADDRNOTAVAIL):
			faults = append(faults, portFault(flag, addr, err))
		}
	})
	return faults
}

func portFault(flag, addr string, err error) string {
	_, port, _ := net.SplitHostPort(addr)
	cause := err
	if op, ok := errors.AsType[*net.OpError](err); ok {
		cause = op.Err
	}
	return fmt.Sprintf("--%s: port %s cannot be listened on: %v; %s", flag, port, cause, portRemedy(cause))
}

// portRemedy says what to do about a port that cannot be listened on.
func portRemedy(cause error) string {
	switch {
	case errors.Is(cause, syscall.EADDRINUSE):
		return "another process has it, such as a second plugin on this machine: give another port, or 0 for none"
	case errors.Is(cause, syscall.EACCES):
		return "low ports are for root: give one above 1023, or 0 for none"
	case errors.Is(cause, syscall.EADDRNOTAVAIL):
		return "this machine has no such address: give one of its own, or the port alone"
	}
	return "give another port, or 0 for none"
}

func (l listeners) close() {
	for _, ln := range []net.Listener{l.healthz, l.metrics} {
		if ln != nil {
			ln.Close()
		}
	}
}
