package main

import (
	"context"
	"fmt"
	"time"
)

// A prober asks for the API server's health every second, as a load balancer
// asks for its /readyz. From these the API server's own Status calls follow: it
// sends one when its last good answer is old.
type prober struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of the probe that failed, which is the last one; set before done is closed
}

// health is the API server's verdict about its KMS providers.
type health interface {
	Healthy(context.Context) error
}

func startProber(ctx context.Context, h health) *prober {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &prober{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := h.Healthy(ctx); err != nil && ctx.Err() == nil {
				p.err = err
				return
			}
		}
	}()
	return p
}

// stop ends the probes and says whether all of them were good.
func (p *prober) stop() error {
	p.cancel()
	<-p.done
	if p.err != nil {
		return fmt.Errorf("the API server was not healthy all the time: %w", p.err)
	}
	return nil
}
