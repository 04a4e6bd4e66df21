package main

import (
	"context"
	"errors"
	"fmt"
	"net"
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
		ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
		if err != nil {
			_, port, _ := net.SplitHostPort(addr)
			cause := err
			if op, ok := errors.AsType[*net.OpError](err); ok {
				cause = op.Err
			}
			faults = append(faults, fmt.Sprintf("--%s: port %s cannot be listened on: %v", flag, port, cause))
			return nil
		}
		return ln
	}
	l.healthz = bind("healthz-port", o.healthzAddr)
	l.metrics = bind("metrics-addr", o.metricsAddr)
	return l, faults
}

func (l listeners) close() {
	for _, ln := range []net.Listener{l.healthz, l.metrics} {
		if ln != nil {
			ln.Close()
		}
	}
}
