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

// listen binds the TCP ports. A port that is taken is reported with its flag.
func listen(o options) (l listeners, faults []string) {
	bind := func(flag, addr string) net.Listener {
		if addr == "" {
			return nil
		}
		ln, err := (&net.ListenConfig{Control: deferAccept}).Listen(context.Background(), "tcp", addr)
		if err != nil {
			_, port, _ := net.SplitHostPort(addr)
			cause := err
			if op, ok := errors.AsType[*net.OpError](err); ok {
				cause = op.Err
			}
			faults = append(faults, fmt.Sprintf("--%s: port %s cannot be listened on: %v; %s", flag, port, cause, portRemedy(cause)))
			return nil
		}
		return ln
	}
	l.healthz = bind("healthz-port", o.healthzAddr)
	l.metrics = bind("metrics-addr", o.metricsAddr)
	return l, faults
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
