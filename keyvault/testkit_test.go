package keyvault_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/stretchr/testify/require"
)

const (
	v1 = "0123456789abcdef0123456789abcdef"
	v2 = "fedcba9876543210fedcba9876543210"
)

var key1 = keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: v1}

// A web is an in-memory HTTP network with vaults in it. It stands in for the
// transport where time is faked: real sockets cannot be inside a synctest bubble.
type web struct {
	mu       sync.Mutex
	requests []request
	inFlight int
	maxOpen  int

	// challenge is the 401's WWW-Authenticate; "" leaves the header out.
	challenge string
	// answer replaces the default answer; nil, nil asks for the default.
	answer func(r request) (*http.Response, error)
}

// A request is what a vault has seen.
type request struct {
	n       int // from 1, without those that had no token
	op      string
	version string
	token   string
	body    []byte
	http    *http.Request
}

func newWeb() *web {
	return &web{challenge: `Bearer authorization="https://login.microsoftonline.com/11111111-2222-3333-4444-555555555555", resource="https://vault.azure.net"`}
}

func (w *web) RoundTrip(req *http.Request) (*http.Response, error) {
	r := request{http: req, token: strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")}
	if req.Body != nil {
		r.body, _ = io.ReadAll(req.Body)
	}
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch {
	case parts[0] == "deletedkeys":
		r.op = "getdeleted"
	case len(parts) == 4:
		r.op, r.version = parts[3], parts[2]
	case len(parts) == 3 && parts[2] == "versions":
		r.op = "list"
	default:
		r.op = "get"
		if len(parts) == 3 {
			r.version = parts[2]
		}
	}
	w.mu.Lock()
	if r.token != "" {
		r.n = 1
		for _, old := range w.requests {
			if old.token != "" {
				r.n++
			}
		}
	}
	w.requests = append(w.requests, r)
	w.inFlight++
	w.maxOpen = max(w.maxOpen, w.inFlight)
	answer := w.answer
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.inFlight--
		w.mu.Unlock()
	}()
	if r.token == "" {
		resp := reply(req, 401, "")
		if w.challenge != "" {
			resp.Header.Set("WWW-Authenticate", w.challenge)
		}
		return resp, nil
	}
	if answer != nil {
		if resp, err := answer(r); resp != nil || err != nil {
			return resp, err
		}
	}
	return good(r), nil
}

// calls counts the requests with a token, of one operation or of all.
func (w *web) calls(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, r := range w.requests {
		if r.token != "" && (op == "" || r.op == op) {
			n++
		}
	}
	return n
}

// good is the answer of a healthy vault, whose encryption is a reversal.
func good(r request) *http.Response {
	kid := "https://kvlab.vault.azure.net/keys/k1/" + r.version
	switch r.op {
	case "get":
		return reply(r.http, 200, fmt.Sprintf(`{"key":{"kid":%q,"kty":"RSA","key_ops":["encrypt","decrypt"]},"attributes":{"enabled":true,"created":1700000000,"exp":1900000000}}`, kid))
	case "list":
		return reply(r.http, 200, `{"value":[],"nextLink":null}`)
	}
	var in struct{ Value string }
	_ = json.Unmarshal(r.body, &in)
	raw, _ := base64.RawURLEncoding.DecodeString(in.Value)
	return reply(r.http, 200, fmt.Sprintf(`{"kid":%q,"value":%q}`, kid, base64.RawURLEncoding.EncodeToString(reversed(raw))))
}

func reversed(b []byte) []byte {
	out := bytes.Clone(b)
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

func reply(req *http.Request, status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Status: fmt.Sprintf("%d", status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {"application/json; charset=utf-8"}, "X-Ms-Request-Id": {"req-1"}},
		Body:   io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

func vaultError(r request, status int, code, inner, message string) *http.Response {
	innererror := ""
	if inner != "" {
		innererror = fmt.Sprintf(`,"innererror":{"code":%q}`, inner)
	}
	return reply(r.http, status, fmt.Sprintf(`{"error":{"code":%q,"message":%q%s}}`, code, message, innererror))
}

// always answers every request in the same way.
func always(status int, code, inner, message string) func(request) (*http.Response, error) {
	return func(r request) (*http.Response, error) { return vaultError(r, status, code, inner, message), nil }
}

// wait is a network delay that ends with the request's context.
func wait(r request, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-r.http.Context().Done():
		return r.http.Context().Err()
	}
}

// A bank gives out tokens t1, t2, … and counts them.
type bank struct {
	mu       sync.Mutex
	requests []keyvault.TokenRequest
	life     time.Duration
	fetch    func(ctx context.Context, n int) error
}

func (b *bank) Token(ctx context.Context, req keyvault.TokenRequest) (azcore.AccessToken, error) {
	b.mu.Lock()
	b.requests = append(b.requests, req)
	n, life, fetch := len(b.requests), b.life, b.fetch
	b.mu.Unlock()
	if fetch != nil {
		if err := fetch(ctx, n); err != nil {
			return azcore.AccessToken{}, err
		}
	}
	if life == 0 {
		life = time.Hour
	}
	return azcore.AccessToken{Token: fmt.Sprintf("t%d", n), ExpiresOn: time.Now().Add(life)}, nil
}

func (b *bank) fetched() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.requests)
}

// A witness collects what a client reports.
type witness struct {
	mu       sync.Mutex
	calls    []keyvault.Call
	outcomes []keyvault.Outcome
}

func (w *witness) ended() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.outcomes)
}

func newClient(t *testing.T, w http.RoundTripper, b keyvault.TokenSource) (*keyvault.Client, *witness) {
	t.Helper()
	seen := &witness{}
	c, err := keyvault.NewClient(keyvault.ClientConfig{
		Credential: b, Transport: w, UserAgent: "test/1",
		OnCall: func(c keyvault.Call) {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			seen.calls = append(seen.calls, c)
		},
		OnOutcome: func(o keyvault.Outcome) {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			seen.outcomes = append(seen.outcomes, o)
		},
	})
	require.NoError(t, err)
	return c, seen
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// failure asserts that err is of this package.
func failure(t *testing.T, err error) *keyvault.Error {
	t.Helper()
	require.Error(t, err)
	var e *keyvault.Error
	require.ErrorAs(t, err, &e)
	require.LessOrEqual(t, len(e.Error()), 1024)
	require.True(t, strings.HasPrefix(e.Error(), string(e.Reason)+": "), e.Error())
	return e
}

var sharedKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func testKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := sharedKey()
	require.NoError(t, err)
	return key
}

func versionID(i int) string { return fmt.Sprintf("%032x", i+1) }

// change has another answer given from now on, while calls are under way.
func (w *web) change(answer func(request) (*http.Response, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
}
