package health

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"azure-kms-plugin/keyvault"
)

// probe makes one round and reports its failure, if it says anything about the key.
func (p *Prober) probe(ctx context.Context, t turn) *keyvault.Error {
	ctx = keyvault.Background(ctx)
	switch t {
	case turnRest:
		return nil
	case turnGet:
		defer p.stamp(0)
		return p.look(ctx)
	case turnEncrypt:
		if err := p.encrypt(ctx); err != nil && !denied(err) {
			return err
		}
		return nil // or known before
	}
	defer func() {
		p.stamp(1)
		p.tried = time.Now()
	}()
	p.cfg.Tracker.answering()
	err := p.roundTrip(ctx)
	if err != nil {
		p.cfg.Tracker.unprobed(p.key, keyvault.Outcome{Op: keyvault.OpDecrypt, Key: p.key, Err: err, Time: time.Now()})
	}
	return err
}

// look gets the key's attributes.
func (p *Prober) look(ctx context.Context) *keyvault.Error {
	attrs, err := p.cfg.Vault.Get(ctx, p.key)
	if e := p.report(ctx, keyvault.OpGet, err); e != nil {
		if !denied(e) {
			return e
		}
		if p.sight.deny(time.Now(), e.Reason) {
			p.cfg.Tracker.ask() // what took this permission may have taken the others
		}
		return nil
	}
	if err != nil {
		return nil // stopping
	}
	attrs.Key = p.key
	p.sight.see(time.Now(), attrs, false)
	p.cfg.Uses.See(attrs)
	return p.examine(attrs)
}

// examine says what the attributes of the version that writes mean for it. What
// asking again soon would not mend is told, and not returned.
func (p *Prober) examine(a keyvault.Attributes) *keyvault.Error {
	now := time.Now()
	if !a.Created.IsZero() {
		p.cfg.Tracker.created(a.Key, now.Add(a.Created.Sub(clockOf(a, now))))
	}
	reason, text := a.Barred(clockOf(a, now))
	if reason == keyvault.Success {
		p.cfg.Tracker.writable(a.Key)
		return nil
	}
	e := &keyvault.Error{Op: keyvault.OpGet, Key: a.Key, Reason: reason, Text: text}
	p.cfg.Tracker.Observe(keyvault.Outcome{Op: keyvault.OpGet, Key: a.Key, Err: e, Time: time.Now()})
	if reason.Kind() == keyvault.KindUnwritable {
		return nil
	}
	return e
}

// roundTrip decrypts the canary, after making one if there is none.
func (p *Prober) roundTrip(ctx context.Context) *keyvault.Error {
	fresh := p.canary == nil
	if fresh {
		if err := p.encrypt(ctx); err != nil || p.canary == nil {
			return err
		}
	}
	plaintext, err := p.cfg.Vault.Decrypt(ctx, p.key, p.canary.Ciphertext)
	if err == nil && p.canary.matches(plaintext) {
		p.cfg.Tracker.canary(p.key, time.Now(), nil)
		return nil
	}
	if err != nil {
		e := p.report(ctx, keyvault.OpDecrypt, err)
		if e == nil || e.Reason.Kind() != keyvault.KindCaller || e.Reason == keyvault.Canceled {
			return e
		}
	}
	// The vault answers, but cannot open the canary or opens it to something
	// else. If it is an old one, it may be the canary that is broken, so a new
	// one is made at once; a second failure is the vault's.
	p.canary = nil
	if !fresh {
		return p.roundTrip(ctx)
	}
	e := &keyvault.Error{
		Op: keyvault.OpDecrypt, Key: p.key, Reason: keyvault.Unknown,
		Text: p.key.Where() + ": what the vault has just encrypted does not decrypt to the same bytes",
	}
	p.cfg.Tracker.canary(p.key, time.Now(), e)
	return e
}

func (p *Prober) encrypt(ctx context.Context) *keyvault.Error {
	plaintext := make([]byte, 32)
	rand.Read(plaintext)
	ciphertext, err := p.cfg.Vault.Encrypt(ctx, p.key, plaintext)
	if e := p.report(ctx, keyvault.OpEncrypt, err); e != nil {
		return e
	}
	if err == nil { // else stopping, and the old canary stays
		p.canary = newCanary(plaintext, ciphertext)
	}
	return nil
}

// report hands an outcome to the tracker and returns its failure. The client
// reports it as well; the tracker keeps the first, so that does no harm, and
// this package does not depend on it. A decrypt is no success before its
// plaintext was compared, so those are not reported here.
func (p *Prober) report(ctx context.Context, op keyvault.Op, err error) *keyvault.Error {
	if ctx.Err() != nil && err != nil {
		return nil // stopping says nothing about the vault
	}
	var e *keyvault.Error
	if err != nil && !errors.As(err, &e) {
		e = &keyvault.Error{Op: op, Key: p.key, Reason: keyvault.Unknown, Text: p.key.Where() + ": unexpected failure of the client", Err: err}
	}
	p.cfg.Tracker.Observe(keyvault.Outcome{Op: op, Key: p.key, Err: e, Time: time.Now()})
	return e
}
