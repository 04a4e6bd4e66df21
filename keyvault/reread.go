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
	return id, errors.Join(fault, first)
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
	if err == nil {
		if _, wrong := id.build(c.transport); wrong != nil {
			err = fmt.Errorf("%s: %w", id.source, wrong)
		}
	}
	if err != nil {
		return nil, err
	}
	return id, nil
}

// fallBack is what to try after the sign-in host's refusal of id: the identity
// that got the last token, if that is another one and has not expired. What is
// refused itself or has expired is forgotten, so that both are asked for only
// while the old one may be of use.
func (c *Credential) fallBack(id *identity, failure *Error) *identity {
	if failure.Reason != CredentialsRefused {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken != nil && c.taken.same(id) {
		c.taken = nil
	}
	if c.taken == nil {
		return nil
	}
	old := c.taken
	// If azure.json has changed, what the old one names may still be renewed.
	if next, err := c.read(old.cfg); err == nil && !next.same(id) {
		old = next
	}
	if old.expired() {
		c.taken = nil
		return nil
	}
	return old
}

// accepted notes that id got a token in spite of fault, which may be nil. Nothing
// is kept of one that was refused before it.
func (c *Credential) accepted(id *identity, fault error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used, c.taken = id, id
	c.note(fault)
}

// failed notes that there is no token, and a fault if there is one. That one is
// over shows only with a token.
func (c *Credential) failed(fault error) {
	if fault == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(fault)
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
