package keyvault

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// readPatience is how long azure.json and the files that it names may take to be
// read. On a file system that hangs, what was read before has to do.
const readPatience = 2 * time.Second

// A reading is what a look at the files has shown.
type reading struct {
	cfg *AzureConfig
	id  *identity // nil if they are of no use, or unlike the ones before
	err error
}

// patiently looks at the files and waits no longer than readPatience for it: nothing
// can cut a look short. There is one at a time, so that a file system that hangs does
// not use up threads. What comes too late is dropped.
func (c *Credential) patiently(look func() reading) reading {
	tooLong := reading{err: fmt.Errorf("azure.json or a file that it names cannot be read within %s: its file system hangs, or it takes too long to decode", readPatience)}
	patience := time.NewTimer(readPatience)
	defer patience.Stop()
	select {
	case c.looks <- struct{}{}:
	case <-patience.C:
		return tooLong
	}
	done := make(chan reading, 1)
	go func() {
		var r reading
		defer func() {
			if p := recover(); p != nil {
				r = reading{err: fmt.Errorf("the reading of azure.json or a file that it names has panicked (%T)", p)}
			}
			<-c.looks
			done <- r
		}()
		r = look()
	}()
	select {
	case r := <-done:
		return r
	case <-patience.C:
		return tooLong
	}
}

// current is the identity to sign in with now. azure.json and the files that
// it names are read for every token: they are renamed over, swapped by symbolic
// links, rewritten in place. While one of them is of no use, perhaps because it
// is just being written, what it said before still signs in, and the error says
// what is wrong with it. Without an identity, the error is why there is none.
func (c *Credential) current() (*identity, error) {
	c.mu.Lock()
	cfg, taken := c.cfg, c.taken
	c.mu.Unlock()
	r := c.patiently(func() reading { return c.look(cfg, taken) })
	c.mu.Lock()
	defer c.mu.Unlock()
	id := r.id
	if id != nil {
		c.cfg, c.used = r.cfg, id
	} else if c.used != nil && !c.used.expired() {
		id = c.used
	}
	return id, r.err
}

// look reads azure.json, or else goes by what it said last, and what that names.
func (c *Credential) look(last *AzureConfig, taken *identity) reading {
	candidates := []*AzureConfig{last}
	next, fault := reread(last)
	if next != nil {
		candidates = []*AzureConfig{next, last}
	}
	var first error
	for _, cfg := range candidates {
		id, err := c.read(cfg, taken)
		if err == nil {
			return reading{cfg, id, errors.Join(fault, first)}
		}
		if first == nil {
			first = err
		}
	}
	return reading{err: errors.Join(fault, first)}
}

// reread is what azure.json says now; nil with the reason while that is of no use.
func reread(last *AzureConfig) (*AzureConfig, error) {
	if last.path == "" {
		return nil, nil // not from a file
	}
	cfg, err := ReadConfig(last.path)
	if err != nil {
		return nil, err
	}
	if was, is := last.Cloud().Name, cfg.Cloud().Name; was != is {
		return nil, fmt.Errorf("%s: cloud has changed from %s to %s, and the vault's host name follows from it: this needs a restart", cfg.path, was, is)
	}
	return cfg, nil
}

// read makes an identity that may take the place of the one that got the last token.
func (c *Credential) read(cfg *AzureConfig, taken *identity) (*identity, error) {
	id, err := readIdentity(cfg, c.opts.WorkloadIdentity)
	if err == nil {
		err = id.replaces(taken)
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

// fallBack is what to try after a refusal of id: the identity that got the last
// token, if that is another one and has not expired. What is refused itself or has
// expired is forgotten, so that both are asked for only while the old one may be of
// use; but not for what it was never taken for, such as a vault elsewhere.
func (c *Credential) fallBack(id *identity, req TokenRequest, failure *Error) *identity {
	taken := c.other(id, req, failure)
	if taken == nil {
		return nil
	}
	// If azure.json has changed, what the old one names may still be renewed.
	r := c.patiently(func() reading {
		next, err := c.read(taken.cfg, taken)
		return reading{id: next, err: err}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	old := taken
	if r.id != nil && !r.id.same(id) {
		old = r.id
	}
	if !old.expired() {
		return old
	}
	if c.taken == taken {
		c.taken = nil
	}
	return nil
}

// other is the identity that got the last token, if it is not the one refused.
func (c *Credential) other(id *identity, req TokenRequest, failure *Error) *identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case failure.Reason != CredentialsRefused || c.taken == nil:
		return nil
	case !c.taken.same(id):
		return c.taken
	case c.takenFor[req]:
		c.taken = nil
	}
	return nil
}

// accepted notes that id got a token in spite of fault, which may be nil. Nothing
// is kept of one that was refused before it.
func (c *Credential) accepted(id *identity, req TokenRequest, fault error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken == nil || !c.taken.same(id) || len(c.takenFor) >= maxEntries {
		c.takenFor = map[TokenRequest]bool{}
	}
	c.takenFor[req] = true
	c.used, c.taken = id, id
	c.count(id)
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
	if text == c.fault {
		return
	}
	if text != "" {
		c.failedReloads++
	}
	switch {
	case text != "" && c.opts.Warn != nil:
		c.opts.Warn(text + "; what was read before is still used")
	case text == "" && c.opts.Info != nil:
		c.opts.Info("azure.json and the files that it names are good again, and used")
	}
	c.fault = text
}

// oneLine joins faults that were made for a line each.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
