package keyvault

import (
	"errors"
	"fmt"
	"strings"
)

// current is the identity to sign in with now. azure.json and the files that
// it names are read for every token: they are renamed over, swapped by symbolic
// links, rewritten in place. While one of them is of no use, perhaps because it
// is just being written, what it said before still signs in, and the error says
// what is wrong with it. Without an identity, the error is why there is none.
func (c *Credential) current() (*identity, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, fault := c.reread()
	candidates := []*AzureConfig{c.cfg}
	if next != nil {
		candidates = []*AzureConfig{next, c.cfg}
	}
	var id *identity
	var first error
	for _, cfg := range candidates {
		var err error
		if id, err = c.read(cfg); err == nil {
			c.cfg, c.used = cfg, id
			break
		}
		if first == nil {
			first = err
		}
	}
	if id == nil && c.used != nil && !c.used.expired() {
		id = c.used
	}
	fault = errors.Join(fault, first)
	if id == nil {
		return nil, fault // the request fails with it, and that is reported
	}
	c.note(fault)
	return id, fault
}

// reread is what azure.json says now; nil with the reason while that is of no use.
func (c *Credential) reread() (*AzureConfig, error) {
	if c.cfg.path == "" {
		return nil, nil // not from a file
	}
	cfg, err := ReadConfig(c.cfg.path)
	if err != nil {
		return nil, err
	}
	if was, is := c.cfg.Cloud().Name, cfg.Cloud().Name; was != is {
		return nil, fmt.Errorf("%s: cloud has changed from %s to %s, and the vault's host name follows from it: this needs a restart", cfg.path, was, is)
	}
	return cfg, nil
}

// read makes an identity that may take the place of the one in use.
func (c *Credential) read(cfg *AzureConfig) (*identity, error) {
	id, err := readIdentity(cfg, c.opts.WorkloadIdentity)
	if err == nil {
		err = id.replaces(c.used)
	}
	if err != nil {
		return nil, err
	}
	return id, nil
}

// note reports a fault once, and its end. The caller holds mu.
func (c *Credential) note(fault error) {
	text := ""
	if fault != nil {
		text = oneLine(fault)
	}
	switch {
	case text == c.fault:
		return
	case text != "" && c.opts.Warn != nil:
		c.opts.Warn(text + "; what was read before is still used")
	case text == "" && c.opts.Info != nil:
		c.opts.Info("azure.json and the files that it names are good again, and used")
	}
	c.fault = text
}

// oneLine joins faults that were made for a line each.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
