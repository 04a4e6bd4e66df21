package doctor

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"azure-kms-plugin/health/console"
	"azure-kms-plugin/keyvault"
)

// Tokens is a source of tokens that notes how the last one came to be. It keeps none.
type Tokens struct {
	Source keyvault.TokenSource
	Method string // the way to sign in

	mu  sync.Mutex
	got *fetch // guarded by mu; nil before the first
}

// A fetch is the end of a token request.
type fetch struct {
	audience string
	took     time.Duration
	life     time.Duration
	err      error
}

// Token implements keyvault.TokenSource.
func (t *Tokens) Token(ctx context.Context, req keyvault.TokenRequest) (azcore.AccessToken, error) {
	start := time.Now()
	token, err := t.Source.Token(ctx, req)
	f := &fetch{audience: strings.TrimSuffix(req.Scope, "/.default"), took: time.Since(start), err: err}
	if err == nil {
		f.life = time.Until(token.ExpiresOn)
	}
	t.mu.Lock()
	t.got = f
	t.mu.Unlock()
	return token, err
}

func (t *Tokens) last() *fetch {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.got
}

func (f *fetch) text(method, host string) string {
	if f == nil {
		return "none was asked for"
	}
	if host == "" {
		host = "the identity service of this machine"
	}
	return fmt.Sprintf("%s, from %s, for %s, good for %s, in %s", method, host, f.audience, console.Age(f.life), millis(f.took))
}
