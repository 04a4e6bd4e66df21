package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"azure-kms-plugin/test/vault"
)

// burst is how many calls a throughput or connection figure rests on.
const burst = 640

// measureAdded compares single calls at a vault that answers at once. Rounds
// alternate, and so does who comes first in a round.
func (b *bench) measureAdded(ctx context.Context) error {
	blocks, err := b.blocks(b.pairs)
	if err != nil {
		return err
	}
	alone, more, err := b.paired(ctx,
		func(ctx context.Context, _ int) error { _, err := b.direct.encrypt(ctx, newSeed()); return err },
		func(ctx context.Context, _ int) error { _, err := b.process.encrypt(ctx, newSeed()); return err })
	if err != nil {
		return fmt.Errorf("encrypting: %w", err)
	}
	b.f.DirectEncrypt, b.f.AddedEncrypt, b.f.AddedEncryptP99 = alone.at(0.5), more.at(0.5), more.at(0.99)
	sealed, err := b.seal(ctx, b.pairs)
	if err != nil {
		return err
	}
	alone, more, err = b.paired(ctx,
		func(ctx context.Context, i int) error { _, err := b.direct.decrypt(ctx, blocks[i]); return err },
		func(ctx context.Context, i int) error { _, err := b.process.decrypt(ctx, sealed[i]); return err })
	if err != nil {
		return fmt.Errorf("decrypting: %w", err)
	}
	b.f.DirectDecrypt, b.f.AddedDecrypt, b.f.AddedDecryptP99 = alone.at(0.5), more.at(0.5), more.at(0.99)
	return nil
}

// blocks encrypts n seeds with the public key, for the direct client to decrypt.
func (b *bench) blocks(n int) ([][]byte, error) {
	blocks := make([][]byte, n)
	for i := range blocks {
		var err error
		if blocks[i], err = rsa.EncryptOAEP(sha256.New(), rand.Reader, b.direct.pub, newSeed(), nil); err != nil {
			return nil, err
		}
	}
	return blocks, nil
}

// paired returns what the direct calls took, and what each of the others took
// beyond its partner.
func (b *bench) paired(ctx context.Context, direct, plugin func(context.Context, int) error) (alone, more sample, err error) {
	timed := func(f func(context.Context, int) error, i int) (time.Duration, error) {
		t := time.Now()
		err := f(ctx, i)
		return time.Since(t), err
	}
	// A few rounds that do not count open the connections.
	for i := range 5 {
		if err := errors.Join(direct(ctx, i), plugin(ctx, i)); err != nil {
			return nil, nil, err
		}
	}
	for i := range b.pairs {
		var d, p time.Duration
		var errD, errP error
		if i%2 == 0 {
			d, errD = timed(direct, i)
			p, errP = timed(plugin, i)
		} else {
			p, errP = timed(plugin, i)
			d, errD = timed(direct, i)
		}
		if err := errors.Join(errD, errP); err != nil {
			return nil, nil, fmt.Errorf("round %d: %w", i+1, err)
		}
		alone, more = append(alone, d), append(more, p-d)
	}
	return alone, more, nil
}

// measureThroughput compares bursts of distinct Decrypts at concurrency 64.
// Near, everything including the vault's RSA shares this machine's cores, so
// each microsecond that the plugin computes is taken from the vault. Far, the
// vault is 50 ms away and its RSA is not on our cores, as in reality: it
// answers from a note.
func (b *bench) measureThroughput(ctx context.Context) (err error) {
	b.f.RateNear, b.f.RatioNear, err = b.rate(ctx)
	if err != nil {
		return fmt.Errorf("near: %w", err)
	}
	note, err := b.cannedAnswer(ctx)
	if err != nil {
		return fmt.Errorf("far: %w", err)
	}
	if err := b.e.only(note); err != nil {
		return err
	}
	b.f.RateFar, b.f.RatioFar, err = b.rate(ctx)
	if err != nil {
		return fmt.Errorf("far: %w", err)
	}
	return nil
}

// rate returns the plugin's Decrypts a second and their ratio to the direct
// client's, over alternating bursts. The first of each only warms up.
func (b *bench) rate(ctx context.Context) (perSecond, ratio float64, err error) {
	blocks, err := b.blocks(burst)
	if err != nil {
		return 0, 0, err
	}
	sealed, err := b.seal(ctx, burst)
	if err != nil {
		return 0, 0, err
	}
	var direct, plugin time.Duration
	for round := range b.rounds + 1 {
		_, d, err := load(ctx, burst, maxConcurrency, func(ctx context.Context, i int) error {
			_, err := b.direct.decrypt(ctx, blocks[i])
			return err
		})
		if err != nil {
			return 0, 0, err
		}
		_, p, err := load(ctx, burst, maxConcurrency, func(ctx context.Context, i int) error {
			_, err := b.process.decrypt(ctx, sealed[i])
			return err
		})
		if err != nil {
			return 0, 0, err
		}
		if round > 0 {
			direct, plugin = direct+d, plugin+p
		}
	}
	return float64(burst*b.rounds) / plugin.Seconds(), direct.Seconds() / plugin.Seconds(), nil
}

// cannedAnswer makes the vault answer every Decrypt after 50 ms with the
// plaintext of one, in whatever form this plugin keeps seeds.
func (b *bench) cannedAnswer(ctx context.Context) (vault.Fault, error) {
	seed := newSeed()
	sealed, err := b.process.encrypt(ctx, seed)
	if err != nil {
		return vault.Fault{}, err
	}
	block := sealed.Ciphertext
	if raw, err := base64.RawURLEncoding.DecodeString(string(block)); err == nil {
		block = raw
	}
	plaintext, err := b.direct.decrypt(ctx, block)
	if err != nil {
		return vault.Fault{}, err
	}
	body, err := json.Marshal(map[string]string{"kid": b.direct.key, "value": base64.RawURLEncoding.EncodeToString(plaintext)})
	if err != nil {
		return vault.Fault{}, err
	}
	f := vault.Fault{
		Op: "decrypt", Host: b.process.vault, Delay: 50 * time.Millisecond,
		Status: http.StatusOK, Body: string(body), ContentType: "application/json; charset=utf-8",
	}
	if err := b.e.only(f); err != nil {
		return f, err
	}
	got, err := b.process.decrypt(ctx, sealed)
	if err == nil && !bytes.Equal(got, seed) {
		err = errors.New("the plugin did not understand the vault's answer")
	}
	return f, err
}

// measureConnections counts the connections that a warm plugin opens.
func (b *bench) measureConnections(ctx context.Context) error {
	sealed, err := b.seal(ctx, burst)
	if err != nil {
		return err
	}
	var before int
	for range 2 {
		if before, err = b.e.connections(); err != nil {
			return err
		}
		_, _, err := load(ctx, burst, maxConcurrency, func(ctx context.Context, i int) error {
			_, err := b.process.decrypt(ctx, sealed[i])
			return err
		})
		if err != nil {
			return err
		}
	}
	after, err := b.e.connections()
	b.f.NewConnections = after - before
	return err
}

// measureIdentical asks for one ciphertext 64 times at once, while the vault is
// far enough away that all of them wait for the same answer.
func (b *bench) measureIdentical(ctx context.Context) error {
	sealed, err := b.seal(ctx, 1)
	if err != nil {
		return err
	}
	if err := b.e.only(b.away(50)); err != nil {
		return err
	}
	match := vault.Match{Op: "decrypt", Host: b.process.host()}
	before, err := b.e.count(match)
	if err != nil {
		return err
	}
	_, _, err = load(ctx, maxConcurrency, maxConcurrency, func(ctx context.Context, _ int) error {
		_, err := b.process.decrypt(ctx, sealed[0])
		return err
	})
	if err != nil {
		return err
	}
	after, err := b.e.count(match)
	b.f.IdenticalCalls = after - before
	return err
}

// away puts the plugin's vault some milliseconds away.
func (b *bench) away(latency int) vault.Fault {
	return vault.Fault{Host: b.process.vault, Delay: time.Duration(latency) * time.Millisecond}
}

// A gridLine is the latency of one operation under one condition.
type gridLine struct {
	Op           string
	VaultAway    int // ms
	Concurrency  int
	Plugin       latency
	DirectClient *latency `json:",omitempty"` // nil for Status, which has no counterpart
}

// measureGrid takes the latency of every operation at three distances of the
// vault, one call at a time and 64.
func (b *bench) measureGrid(ctx context.Context) error {
	blocks, err := b.blocks(burst)
	if err != nil {
		return err
	}
	sealed, err := b.seal(ctx, burst)
	if err != nil {
		return err
	}
	ops := []struct {
		name           string
		plugin, direct func(context.Context, int) error
	}{
		{"Status", func(ctx context.Context, _ int) error { return b.process.status(ctx) }, nil},
		{
			"Encrypt",
			func(ctx context.Context, _ int) error { _, err := b.process.encrypt(ctx, newSeed()); return err },
			func(ctx context.Context, _ int) error { _, err := b.direct.encrypt(ctx, newSeed()); return err },
		},
		{
			"Decrypt",
			func(ctx context.Context, i int) error { _, err := b.process.decrypt(ctx, sealed[i]); return err },
			func(ctx context.Context, i int) error { _, err := b.direct.decrypt(ctx, blocks[i]); return err },
		},
		{
			"Decrypt, identical",
			func(ctx context.Context, _ int) error { _, err := b.process.decrypt(ctx, sealed[0]); return err },
			nil,
		},
	}
	for _, away := range []int{0, 20, 50} {
		if err := b.e.only(); err != nil {
			return err
		}
		if away > 0 {
			if err := b.e.only(b.away(away)); err != nil {
				return err
			}
		}
		for _, size := range []struct{ n, c int }{{b.single, 1}, {b.many, maxConcurrency}} {
			for _, op := range ops {
				line := gridLine{Op: op.name, VaultAway: away, Concurrency: size.c}
				took, _, err := load(ctx, size.n, size.c, op.plugin)
				if err != nil {
					return fmt.Errorf("%s, vault %d ms away, %d at a time: %w", op.name, away, size.c, err)
				}
				line.Plugin = took.latency()
				if op.direct != nil {
					took, _, err := load(ctx, size.n, size.c, op.direct)
					if err != nil {
						return err
					}
					l := took.latency()
					line.DirectClient = &l
				}
				b.f.Grid = append(b.f.Grid, line)
			}
		}
	}
	return nil
}

// measureDead takes Status while the vault is far away, and while it is dead in
// three ways, each long enough that a prober meets the fault too.
func (b *bench) measureDead(ctx context.Context) error {
	for _, kind := range []struct {
		name  string
		fault vault.Fault
		into  *latency
	}{
		{"50 ms away", b.away(50), &b.f.StatusFar},
		{"hanging", vault.Fault{Host: b.process.vault, Hang: true}, &b.f.StatusHanging},
		{"refusing connections", vault.Fault{Refuse: true}, &b.f.StatusRefused},
		{"dropping packets", vault.Fault{Drop: true}, &b.f.StatusDropped},
	} {
		if err := b.e.only(kind.fault); err != nil {
			return err
		}
		*kind.into = b.process.statusFor(ctx, b.deadWindow)
		if err := b.e.only(); err != nil {
			return err
		}
		if err := b.recover(ctx); err != nil {
			return fmt.Errorf("after %s: %w", kind.name, err)
		}
	}
	return ctx.Err()
}

// recover waits until the plugin works again.
func (b *bench) recover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		_, err := b.process.encrypt(ctx, newSeed())
		if err = errors.Join(err, b.process.status(ctx)); err == nil {
			return nil
		}
		if stop := b.process.pause(ctx, 100*time.Millisecond); stop != nil {
			return fmt.Errorf("waiting until it works again: %w (last: %v)", stop, err)
		}
	}
}
