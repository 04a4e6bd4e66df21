package doctor

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"azure-kms-plugin/health/console"
	"azure-kms-plugin/keyvault"
)

const (
	// maxSkew is how far this machine's clock may be off the vault's: tokens and
	// certificates allow five minutes.
	maxSkew = 5 * time.Minute
	// soon is how long before its end something should be renewed.
	soon = 30 * 24 * time.Hour
	// soonTLS is the same for the certificate of a host, which its owner renews late.
	soonTLS = 3 * 24 * time.Hour
)

// network goes to the vault and looks at its clock.
func (w *walk) network() {
	var route keyvault.Route
	w.step(func(ctx context.Context) {
		var s Step
		route, s = resolve(ctx, w.Way, DNS, w.Key.Host)
		w.add(s)
	}, DNS)
	w.step(func(ctx context.Context) { w.add(connect(ctx, w.Way, TCP, route)) }, TCP)
	names := []Name{TLS, Clock}
	if route.Via == keyvault.ViaProxy {
		names = []Name{Proxy, TLS, Clock}
	}
	w.step(func(ctx context.Context) {
		x, err := w.Way.Exchange(ctx)
		w.add(exchanged(x, err, route, TLS, w.Key.Host)...)
		if err != nil {
			w.add(notReached(Clock))
			return
		}
		w.add(clock(x))
	}, names...)
}

// resolve finds the first stop on the way to a host.
func resolve(ctx context.Context, way Way, name Name, host string) (keyvault.Route, Step) {
	route, err := way.Resolve(ctx)
	if err != nil {
		s := failed(name, err)
		switch {
		case route.Via == keyvault.ViaProxy:
			s.Remedy = "the name is that of the proxy in HTTPS_PROXY: mend that variable, or unset it where no proxy is needed"
		case route.Via == keyvault.ViaForward:
			s.Remedy = "the name is that of --proxy-address: mend that flag"
		case s.Reason == keyvault.Unreachable:
			s.Remedy = "look at /etc/resolv.conf here, in a pod at its dnsPolicy, and whether that resolver is up"
		}
		return route, s
	}
	addresses := strings.Join(route.Addresses[:min(len(route.Addresses), 8)], ", ")
	text := addresses
	if addresses != route.Host {
		text = route.Host + ": " + addresses
	}
	switch route.Via {
	case keyvault.ViaProxy:
		text += ", the proxy in HTTPS_PROXY, which resolves " + host + " itself"
	case keyvault.ViaForward:
		text += ", the forwarding service of --proxy-mode, which resolves " + host + " itself"
	}
	return route, noted(name, OK, text)
}

func connect(ctx context.Context, way Way, name Name, route keyvault.Route) Step {
	start := time.Now()
	address, err := way.Connect(ctx)
	if err == nil {
		return noted(name, OK, fmt.Sprintf("%s takes connections, after %s", address, millis(time.Since(start))))
	}
	s := failed(name, err)
	to := net.JoinHostPort(route.Host, route.Port)
	switch route.Via {
	case keyvault.ViaProxy:
		s.Remedy = "look whether the proxy in HTTPS_PROXY runs at " + to
	case keyvault.ViaForward:
		s.Remedy = "look whether the forwarding service of --proxy-address and --proxy-port runs at " + to
	default:
		s.Remedy = fmt.Sprintf("look at routes and firewalls between this machine and %s, and at the private endpoint if there is one; where only a proxy leads out, give the plugin HTTPS_PROXY", to)
	}
	return s
}

// exchanged is what the first request has shown: of the proxy, if there is one, and of
// the certificate.
func exchanged(x keyvault.Exchange, err error, route keyvault.Route, name Name, host string) (steps []Step) {
	proxied := route.Via == keyvault.ViaProxy && name == TLS
	if err != nil {
		s := failed(name, err)
		if proxied && s.Cause == keyvault.CauseProxy {
			s.Name = Proxy
			return []Step{s, notReached(name)}
		}
		if proxied {
			steps = append(steps, led(host))
		}
		if strings.Contains(s.Text, "expired") {
			s.Remedy = "look at this machine's clock first, then at who answers there"
		} else if s.Cause == keyvault.CauseTLS {
			s.Remedy = "if the certificate is not that host's own, something on the way opens TLS or the name leads elsewhere; if it is meant to, trust its authority by --ca-file"
		}
		return append(steps, s)
	}
	if proxied {
		steps = append(steps, led(host))
	}
	answer := fmt.Sprintf("http %d after %s", x.Status, millis(x.Answered.Sub(x.Sent)))
	if x.TLS == nil {
		return append(steps, noted(name, Note, "none: --proxy-mode goes by plain HTTP, and whoever can listen there can read tokens; "+answer))
	}
	s := noted(name, OK, fmt.Sprintf("%s, %s, until %s; %s", x.TLS.Version, x.TLS.Certificate, x.TLS.NotAfter.UTC().Format(time.RFC3339), answer))
	if left := x.TLS.NotAfter.Sub(x.Answered); left < soonTLS {
		s.State = Warn
		s.Remedy = "the certificate ends in " + console.Age(left) + ": whoever runs that host or the proxy before it must renew it"
	}
	return append(steps, s)
}

func led(host string) Step { return noted(Proxy, OK, "it leads to "+host) }

// clock compares the clocks of this machine and the vault.
func clock(x keyvault.Exchange) Step {
	if x.Date.IsZero() {
		return noted(Clock, Note, "the answer has no date: the clocks cannot be compared")
	}
	// A date has no fractions, and was written somewhere between the two moments.
	skew := x.Date.Add(time.Second / 2).Sub(x.Sent.Add(x.Answered.Sub(x.Sent) / 2)).Round(time.Second)
	if skew.Abs() <= 2*time.Second {
		return noted(Clock, OK, "this machine's clock and the vault's agree")
	}
	word := "behind"
	if skew < 0 {
		word = "ahead of"
	}
	s := noted(Clock, OK, fmt.Sprintf("this machine's clock is %s %s the vault's", skew.Abs(), word))
	if skew.Abs() > maxSkew {
		s.State, s.Remedy = Warn, "set the clock of this machine (chrony, systemd-timesyncd): tokens and certificates are judged by it"
	}
	return s
}

func millis(d time.Duration) string { return d.Round(time.Millisecond).String() }
