package keyvault

import (
	"context"
	"time"
)

const (
	// defaultBudget is the time for a call whose context has no deadline, and
	// for a background call: with the prober's period, a vault that hangs is known
	// within 45 seconds.
	defaultBudget = 8 * time.Second
	// minEvidence is how long a vault must have had for its silence to be held
	// against it.
	minEvidence = 500 * time.Millisecond
	minMargin   = 5 * time.Millisecond
	maxMargin   = 100 * time.Millisecond
	// retryDelay is the first pause before another try, and maxRetryDelay the
	// longest that a vault may ask for.
	retryDelay    = 100 * time.Millisecond
	maxRetryDelay = time.Second
)

type backgroundKey struct{}

// Background marks the calls made under ctx as those of a prober or poller:
// each has 8 s of its own, does not queue behind interactive calls, may retry
// twice, and passes an open breaker unless the vault itself has asked for a
// pause.
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

func isBackground(ctx context.Context) bool {
	v, _ := ctx.Value(backgroundKey{}).(bool)
	return v
}

// withBudget ends a little before its parent's deadline, so that the cause of a
// time-out is known and told while somebody still listens.
func withBudget(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, defaultBudget)
	}
	if isBackground(ctx) {
		return context.WithTimeout(ctx, min(defaultBudget, time.Until(deadline)))
	}
	left := time.Until(deadline)
	margin := min(max(left/50, minMargin), maxMargin)
	return context.WithTimeout(ctx, left-margin)
}
