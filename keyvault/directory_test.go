package keyvault_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// A directory is an in-memory sign-in host and metadata service, for tests
// whose time is faked.
type directory struct {
	mu    sync.Mutex
	hosts []string     // of the token requests
	forms []url.Values // of the token requests, query or body
	times []time.Time  // of the token requests

	// life is how long a token lasts; an hour by default.
	life time.Duration
	// answer replaces the answer to a token request, the n-th from 1; nil, nil
	// asks for a token.
	answer func(n int, form url.Values, req *http.Request) (*http.Response, error)
}

func (d *directory) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasSuffix(req.URL.Path, "/openid-configuration") {
		tenant, _, _ := strings.Cut(req.URL.Path[1:], "/")
		base := "https://" + req.URL.Host + "/" + tenant
		return reply(req, 200, fmt.Sprintf(`{"issuer":"%s/v2.0","authorization_endpoint":"%s/authorize","token_endpoint":"%s/oauth2/v2.0/token"}`, base, base, base)), nil
	}
	form := req.URL.Query()
	if req.Body != nil {
		data, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		if form, err = url.ParseQuery(string(data)); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	d.hosts, d.forms, d.times = append(d.hosts, req.URL.Host), append(d.forms, form), append(d.times, time.Now())
	n, life, answer := len(d.times), d.life, d.answer
	d.mu.Unlock()
	if answer != nil {
		if resp, err := answer(n, form, req); resp != nil || err != nil {
			return resp, err
		}
	}
	if life == 0 {
		life = time.Hour
	}
	return reply(req, 200, fmt.Sprintf(`{"token_type":"Bearer","access_token":"t%d","expires_in":%d,"expires_on":"%d","resource":"r"}`,
		n, int(life.Seconds()), time.Now().Add(life).Unix())), nil
}

// asked is when tokens were asked for.
func (d *directory) asked() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]time.Time(nil), d.times...)
}

// refuseSignIn is a refusal by the directory.
func refuseSignIn(req *http.Request, code string) *http.Response {
	return reply(req, 401, fmt.Sprintf(`{"error":"invalid_client","error_description":"%s: CANARY said so."}`, code))
}

// metadataError is one by the metadata service.
func metadataError(req *http.Request, status int, text string) *http.Response {
	return reply(req, status, fmt.Sprintf(`{"error":"invalid_request","error_description":%q}`, text))
}

var errConnectionRefused = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

// signedIn is a client of an in-memory vault, signed in by azure.json at path.
func signedIn(t *testing.T, path string, d *directory, w http.RoundTripper, o keyvault.CredentialOptions) *keyvault.Client {
	t.Helper()
	cfg, err := keyvault.ReadConfig(path)
	require.NoError(t, err)
	o.Transport = d
	cred, err := keyvault.NewCredential(cfg, o)
	require.NoError(t, err)
	c, _ := newClient(t, w, cred)
	return c
}

// decrypts calls as kube-apiserver does.
func decrypts(t *testing.T, c *keyvault.Client) *keyvault.Error {
	t.Helper()
	_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
	var e *keyvault.Error
	if errors.As(err, &e) {
		return e
	}
	require.NoError(t, err)
	return nil
}

// jwt has the form of a federated token that ends at a given time.
func jwt(end time.Time) string { return compact(fmt.Sprintf(`{"exp":%d}`, end.Unix()), "signature") }

// federated has the form of one of that name, which does not say when it ends.
func federated(name string) string { return compact(fmt.Sprintf(`{"sub":%q}`, name), name) }

func compact(payload, signature string) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"RS256"}`) + "." + part(payload) + "." + part(signature)
}
