package doctor_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/doctor"
	"azure-kms-plugin/keyvault"
)

var key = keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: "0123456789abcdef0123456789abcdef"}

// date is the vault's clock in these tests, and this machine's.
var date = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// A vault answers what a test wants of it, and fetches a token first.
type vault struct {
	tokens     *doctor.Tokens
	attributes keyvault.Attributes
	get        error
	encrypt    error
	block      []byte // that decrypt gives; nil for the right one
	kept       []byte
}

func (v *vault) Get(ctx context.Context, ref keyvault.Ref) (keyvault.Attributes, error) {
	if _, err := v.tokens.Token(ctx, keyvault.TokenRequest{Scope: "https://vault.azure.net/.default"}); err != nil {
		return keyvault.Attributes{}, err
	}
	return v.attributes, v.get
}

func (v *vault) Encrypt(_ context.Context, _ keyvault.Ref, b []byte) ([]byte, error) {
	v.kept = slices.Clone(b)
	return []byte("block"), v.encrypt
}

func (v *vault) Decrypt(context.Context, keyvault.Ref, []byte) ([]byte, error) {
	if v.block != nil {
		return v.block, nil
	}
	return slices.Clone(v.kept), nil
}

type source struct{ err error }

func (s source) Token(context.Context, keyvault.TokenRequest) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "TOKENCANARY", ExpiresOn: time.Now().Add(time.Hour)}, s.err
}

// A way is one that leads to a host, as far as a test lets it.
type way struct {
	route    keyvault.Route
	resolve  error
	connect  error
	exchange keyvault.Exchange
	broken   error
}

func (w *way) Resolve(context.Context) (keyvault.Route, error) { return w.route, w.resolve }
func (w *way) Connect(context.Context) (string, error)         { return "10.0.0.4:443", w.connect }

func (w *way) Exchange(context.Context) (keyvault.Exchange, error) { return w.exchange, w.broken }

// well is a configuration in which nothing is wrong and no plugin runs.
func well(t *testing.T) (doctor.Config, *vault, *way) {
	tokens := &doctor.Tokens{Source: source{}, Method: "client secret"}
	v := &vault{tokens: tokens, attributes: keyvault.Attributes{Key: key, Enabled: true, Created: date.Add(-time.Hour), Date: date, KeyType: "RSA"}}
	w := &way{
		route: keyvault.Route{Host: key.Host, Port: "443", Addresses: []string{"10.0.0.4"}},
		exchange: keyvault.Exchange{
			Status: 200, Sent: date.Add(100 * time.Millisecond), Answered: date.Add(900 * time.Millisecond), Date: date,
			TLS: &keyvault.TLS{Version: "TLS 1.3", Certificate: "CN=*.vault.azure.net, issued by CN=CA", NotAfter: date.Add(1000 * time.Hour)},
		},
	}
	return doctor.Config{
		Key: key, Vault: v, Tokens: tokens, Way: w, SignIn: w, SignInHost: "login.microsoftonline.com", Socket: filepath.Join(shortDir(t), "k.sock"),
		ActivationDelay: 3 * time.Minute,
	}, v, w
}

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "akp")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func find(t *testing.T, r *doctor.Report, name doctor.Name) doctor.Step {
	t.Helper()
	i := slices.IndexFunc(r.Steps, func(s doctor.Step) bool { return s.Name == name })
	require.GreaterOrEqual(t, i, 0, "no step %s", name)
	return r.Steps[i]
}
