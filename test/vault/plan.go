package vault

// A line is what happens to connections of a host.
type line struct {
	Refuse, Drop bool
	TLS          TLSFault
	DNS          DNSFault
	fault        Fault
}

// A plan is what the faults in force do to connections. It never changes;
// when another takes its place, replaced is closed.
type plan struct {
	all      line
	hosts    map[string]line
	replaced chan struct{}
}

func newPlan(faults map[FaultID]Fault) *plan {
	p := &plan{hosts: map[string]line{}, replaced: make(chan struct{})}
	for _, f := range faults {
		if !f.ofConnection() {
			continue
		}
		l := p.all
		if f.Host != "" {
			l = p.hosts[f.Host]
		}
		l.Refuse, l.Drop = l.Refuse || f.Refuse, l.Drop || f.Drop
		if f.TLS != "" {
			l.TLS = f.TLS
		}
		if f.DNS != "" {
			l.DNS, l.fault = f.DNS, f
		}
		if f.Host != "" {
			p.hosts[f.Host] = l
		} else {
			p.all = l
		}
	}
	return p
}

// of returns what happens to connections of one host. Refusals and drops of
// everything happen at the listeners and are not repeated here.
func (p *plan) of(host string) line {
	l := p.hosts[host]
	if l.TLS == "" {
		l.TLS = p.all.TLS
	}
	if l.DNS == "" {
		l.DNS, l.fault = p.all.DNS, p.all.fault
	}
	return l
}
