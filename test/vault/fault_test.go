package vault_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"azure-kms-plugin/test/vault"
	"github.com/stretchr/testify/require"
)

// rig is an emulator with a key and a client that has a token.
type rig struct {
	srv    *vault.Server
	v      *vault.Vault
	ver    string
	hc     *http.Client
	bearer string
}

func newRig(t *testing.T, cfg vault.Config) *rig {
	t.Helper()
	srv := start(t, cfg)
	v := srv.Vault("kvlab")
	ver, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	rt := srv.Transport()
	t.Cleanup(rt.CloseIdleConnections)
	r := &rig{srv: srv, v: v, ver: ver, hc: &http.Client{
		Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	r.bearer = "Bearer " + tokenFor(t, srv, r.hc, "https://vault.azure.net")
	srv.ResetCalls()
	return r
}

// get asks for a version, the current one for an empty ID.
func (r *rig) get(ctx context.Context, version string) (*http.Response, string, error) {
	return r.do(ctx, http.MethodGet, "/keys/k1/"+version, "")
}

func (r *rig) encrypt(ctx context.Context) (*http.Response, string, error) {
	return r.do(ctx, http.MethodPost, "/keys/k1/encrypt", `{"alg":"RSA-OAEP-256","value":"c2VlZA"}`)
}

func (r *rig) do(ctx context.Context, method, path, body string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.v.URL()+path+"?api-version=2025-07-01", strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Authorization", r.bearer)
	res, err := r.hc.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

func (r *rig) status(t *testing.T, version string) int {
	t.Helper()
	res, _, err := r.get(t.Context(), version)
	require.NoError(t, err)
	return res.StatusCode
}

// soon is a context that ends long after a good answer and long before a test gives up.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestAFaultHitsWhatItNames(t *testing.T) {
	r := newRig(t, vault.Config{})
	_, err := r.srv.Vault("kvother").CreateKey("k1", options())
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		f    vault.Fault
		want bool // hits a GET of the version
	}{
		"everything":           {vault.Fault{}, true},
		"the operation":        {vault.Fault{Op: vault.OpGet}, true},
		"another operation":    {vault.Fault{Op: vault.OpEncrypt}, false},
		"the key":              {vault.Fault{Key: "K1"}, true},
		"another key":          {vault.Fault{Key: "k2"}, false},
		"the version":          {vault.Fault{Version: r.ver}, true},
		"another version":      {vault.Fault{Version: strings.Repeat("0", 32)}, false},
		"the vault":            {vault.Fault{Host: "kvlab"}, true},
		"the vault's host":     {vault.Fault{Host: "KVLAB.vault.azure.net"}, true},
		"another vault":        {vault.Fault{Host: "kvother"}, false},
		"the token endpoint":   {vault.Fault{Host: "login.microsoftonline.com"}, false},
		"every call but these": {vault.Fault{Skip: 2}, false},
		"more at a time":       {vault.Fault{Above: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.f.Status = 503
			id := r.srv.AddFault(tc.f)
			want := 200
			if tc.want {
				want = 503
			}
			require.Equal(t, want, r.status(t, r.ver))
			r.srv.RemoveFault(id)
			require.Equal(t, 200, r.status(t, r.ver))
		})
	}
	require.Empty(t, r.srv.Faults())
	// A version that the request does not name is not matched.
	r.srv.AddFault(vault.Fault{Version: r.ver, Status: 503})
	require.Equal(t, 200, r.status(t, ""))
	r.srv.ClearFaults()
	// Times and Skip.
	r.srv.AddFault(vault.Fault{Status: 503, Skip: 1, Times: 2})
	var got []int
	for range 5 {
		got = append(got, r.status(t, r.ver))
	}
	require.Equal(t, []int{200, 503, 503, 200, 200}, got)
	require.Empty(t, r.srv.Faults(), "used up")
}

func TestWhatAFaultAnswers(t *testing.T) {
	r := newRig(t, vault.Config{})
	for name, tc := range map[string]struct {
		f      vault.Fault
		status int
		code   string
		inner  string
		header http.Header
		body   string // instead of code
	}{
		"503":               {f: vault.Fault{Status: 503}, status: 503, code: "ServiceUnavailable"},
		"429":               {f: vault.Fault{Status: 429}, status: 429, code: "Throttled", header: http.Header{"Retry-After": nil}},
		"429 and when":      {f: vault.Fault{Status: 429, RetryAfter: 7 * time.Second}, status: 429, code: "Throttled", header: http.Header{"Retry-After": {"7"}}},
		"and when, finer":   {f: vault.Fault{Status: 429, RetryAfter: 1500 * time.Millisecond}, status: 429, code: "Throttled", header: http.Header{"Retry-After-Ms": {"1500"}}},
		"401":               {f: vault.Fault{Status: 401}, status: 401, code: "Unauthorized", header: http.Header{"Www-Authenticate": {`Bearer authorization="https://login.microsoftonline.com/` + r.srv.TenantID + `", resource="https://vault.azure.net"`}}},
		"an odd challenge":  {f: vault.Fault{Status: 401, Header: map[string]string{"WWW-Authenticate": `Bearer resource="https://vault.local.example"`}}, status: 401, code: "Unauthorized", header: http.Header{"Www-Authenticate": {`Bearer resource="https://vault.local.example"`}}},
		"no challenge":      {f: vault.Fault{Status: 401, Header: map[string]string{"WWW-Authenticate": ""}}, status: 401, code: "Unauthorized", header: http.Header{"Www-Authenticate": nil}},
		"disabled":          {f: vault.Fault{Status: 403, InnerCode: "KeyDisabled"}, status: 403, code: "Forbidden", inner: "KeyDisabled"},
		"inner code alone":  {f: vault.Fault{InnerCode: "ForbiddenByRbac"}, status: 403, code: "Forbidden", inner: "ForbiddenByRbac"},
		"own words":         {f: vault.Fault{Status: 418, Code: "Teapot", InnerCode: "Short", Message: "and stout"}, status: 418, code: "Teapot", inner: "Short"},
		"not found":         {f: vault.Fault{Status: 404}, status: 404, code: "KeyNotFound"},
		"a page":            {f: vault.Fault{Status: 404, Body: "<html>", ContentType: "text/html"}, status: 404, body: "<html>", header: http.Header{"Content-Type": {"text/html"}}},
		"a page, with 200":  {f: vault.Fault{Body: "<html>", ContentType: "text/html"}, status: 200, body: "<html>"},
		"nothing":           {f: vault.Fault{Status: 502, NoBody: true}, status: 502, body: "", header: http.Header{"Content-Type": nil}},
		"200 without more":  {f: vault.Fault{Status: 200}, status: 200, body: "{}"},
		"elsewhere":         {f: vault.Fault{Redirect: "https://example.com/"}, status: 307, header: http.Header{"Location": {"https://example.com/"}}},
		"an odd request ID": {f: vault.Fault{Status: 503, Header: map[string]string{"x-ms-request-id": "über"}}, status: 503, code: "ServiceUnavailable", header: http.Header{"X-Ms-Request-Id": {"über"}}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.f.Times = 1
			r.srv.AddFault(tc.f)
			res, body, err := r.get(t.Context(), r.ver)
			require.NoError(t, err)
			require.Equal(t, tc.status, res.StatusCode)
			for name, values := range tc.header {
				require.Equal(t, values, res.Header.Values(name)[:len(res.Header.Values(name)):len(res.Header.Values(name))], name)
			}
			if tc.code == "" {
				require.Equal(t, tc.body, body)
				return
			}
			var e struct {
				Error struct {
					Code       string
					Message    string
					InnerError struct{ Code string }
				}
			}
			require.NoError(t, json.Unmarshal([]byte(body), &e), body)
			require.Equal(t, tc.code, e.Error.Code)
			require.Equal(t, tc.inner, e.Error.InnerError.Code)
			require.NotEmpty(t, e.Error.Message)
		})
	}
	require.Equal(t, 4, r.srv.Count(vault.Match{Op: vault.OpGet, Status: 503})+r.srv.Count(vault.Match{Status: 429})-1)
}

func TestSlowCutAndLongAnswers(t *testing.T) {
	r := newRig(t, vault.Config{})
	r.srv.AddFault(vault.Fault{Delay: 60 * time.Millisecond, Times: 1})
	begun := time.Now()
	require.Equal(t, 200, r.status(t, r.ver))
	require.GreaterOrEqual(t, time.Since(begun), 60*time.Millisecond)

	r.srv.AddFault(vault.Fault{Delay: 60 * time.Millisecond, Times: 1})
	r.srv.AddFault(vault.Fault{Status: 503, Times: 1})
	begun = time.Now()
	require.Equal(t, 503, r.status(t, r.ver), "a delay and a status add up")
	require.GreaterOrEqual(t, time.Since(begun), 60*time.Millisecond)

	r.srv.AddFault(vault.Fault{SlowBody: 5 * time.Millisecond, Body: "0123456789", Times: 1})
	begun = time.Now()
	_, body, err := r.get(t.Context(), r.ver)
	require.NoError(t, err)
	require.Equal(t, "0123456789", body)
	require.GreaterOrEqual(t, time.Since(begun), 50*time.Millisecond)

	r.srv.AddFault(vault.Fault{SlowBody: time.Minute, Times: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	res, _, err := r.get(ctx, r.ver)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, 200, res.StatusCode, "the headers come at once")

	r.srv.AddFault(vault.Fault{Cut: true, Times: 1})
	_, body, err = r.get(t.Context(), r.ver)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotEmpty(t, body)

	r.srv.AddFault(vault.Fault{BodySize: 3 << 20, Times: 1})
	_, body, err = r.get(t.Context(), r.ver)
	require.NoError(t, err)
	require.Len(t, body, 3<<20)
	require.True(t, json.Valid([]byte(body)), "blanks do no harm to JSON")
}

func TestOnlyWhatIsTooManyAtATimeIsThrottled(t *testing.T) {
	r := newRig(t, vault.Config{})
	hang := r.srv.AddFault(vault.Fault{Op: vault.OpEncrypt, Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { r.encrypt(ctx) }) // ends by cancel
	}
	require.Eventually(t, func() bool { n, _ := r.srv.InFlight(); return n == 2 }, 5*time.Second, time.Millisecond)
	r.srv.RemoveFault(hang)
	r.srv.AddFault(vault.Fault{Status: 429, Above: 3})
	require.Equal(t, 200, r.status(t, ""), "the third at a time")
	r.srv.ClearFaults()
	r.srv.AddFault(vault.Fault{Status: 429, Above: 2})
	require.Equal(t, 429, r.status(t, ""))
	cancel()
	wg.Wait()
	require.Eventually(t, func() bool { n, _ := r.srv.InFlight(); return n == 0 }, 5*time.Second, time.Millisecond)
	require.Equal(t, 200, r.status(t, ""))
}

func TestHangEndsWhenTheClientLeaves(t *testing.T) {
	for name, cfg := range map[string]vault.Config{"HTTP/1.1": {}, "HTTP/2": {HTTP2: true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, cfg)
			r.srv.AddFault(vault.Fault{Op: vault.OpEncrypt, Hang: true})
			_, _, err := r.encrypt(soon(t))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Eventually(t, func() bool { n, _ := r.srv.InFlight(); return n == 0 }, 5*time.Second, 5*time.Millisecond)
			last := r.srv.Requests()[len(r.srv.Requests())-1]
			require.True(t, last.Cancelled)
			require.Zero(t, last.Status)
			require.Equal(t, 1, r.srv.Calls()["encrypt"])
			require.Equal(t, 200, r.status(t, r.ver))
		})
	}
}

// spy remembers how the connections of a transport ended.
type spy struct {
	net.Conn
	ended chan<- error
}

func (s *spy) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.note(err)
	return n, err
}

func (s *spy) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.note(err)
	return n, err
}

func (s *spy) note(err error) {
	if err != nil {
		select {
		case s.ended <- err:
		default:
		}
	}
}

func TestResetIsATCPReset(t *testing.T) {
	for name, cfg := range map[string]vault.Config{"HTTP/1.1": {}, "HTTP/2": {HTTP2: true}} {
		for _, way := range []string{"transport", "proxy"} {
			t.Run(name+" by "+way, func(t *testing.T) {
				r := newRig(t, cfg)
				rt := r.srv.Transport()
				if way == "proxy" {
					rt = proxied(t, r.srv)
				}
				ended := make(chan error, 1)
				dial := rt.DialContext
				if dial == nil {
					dial = (&net.Dialer{}).DialContext
				}
				rt.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := dial(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return &spy{c, ended}, nil
				}
				r.hc.Transport = rt
				r.srv.AddFault(vault.Fault{Op: vault.OpEncrypt, Reset: true, Times: 1})
				_, _, err := r.encrypt(t.Context())
				require.Error(t, err)
				require.ErrorIs(t, <-ended, syscall.ECONNRESET)
				res, _, err := r.encrypt(t.Context())
				require.NoError(t, err)
				require.Equal(t, 200, res.StatusCode)
			})
		}
	}
}

func TestTokenEndpointsFailApart(t *testing.T) {
	r := newRig(t, vault.Config{})
	r.srv.AddFault(vault.Fault{Op: vault.OpToken, Status: 429, RetryAfter: 3 * time.Second})
	status, body := askToken(t, r.srv, r.hc, r.srv.TenantID, nil)
	require.Equal(t, 429, status)
	require.Equal(t, "temporarily_unavailable", body["error"])
	require.Equal(t, 200, r.status(t, ""), "the vault answers")
	r.srv.ClearFaults()
	r.srv.AddFault(vault.Fault{Host: "login.microsoftonline.com", Status: 401, Code: "invalid_client", InnerCode: "AADSTS7000222", Message: "expired."})
	status, body = askToken(t, r.srv, r.hc, r.srv.TenantID, nil)
	require.Equal(t, 401, status)
	require.Contains(t, body["error_description"], "AADSTS7000222: expired.")
	r.srv.ClearFaults()
	r.srv.AddFault(vault.Fault{Op: vault.OpIMDS, Status: 410, Times: 1})
	res, err := r.hc.Get("http://169.254.169.254/metadata/identity/oauth2/token")
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, 410, res.StatusCode)
}

func TestFaultsThatMeanNothingAreRefused(t *testing.T) {
	srv := start(t, vault.Config{})
	for name, tc := range map[string]struct {
		f    vault.Fault
		text string
	}{
		"nothing at all":      {vault.Fault{Op: vault.OpGet}, "does nothing"},
		"an operation":        {vault.Fault{Op: "decript", Status: 500}, `"decript" is not an operation`},
		"a host":              {vault.Fault{Host: "kv.example.com", Status: 500}, "not a name of the service"},
		"a status":            {vault.Fault{Status: 42}, "between 200 and 599"},
		"two answers":         {vault.Fault{Status: 500, Hang: true}, "exclude each other"},
		"two bodies":          {vault.Fault{Status: 500, Body: "x", Code: "y"}, "Body excludes"},
		"a TLS fault":         {vault.Fault{TLS: "bad"}, "none of untrusted"},
		"a DNS fault":         {vault.Fault{DNS: "bad"}, "none of not-found"},
		"two of connections":  {vault.Fault{Refuse: true, Drop: true}, "exclude each other"},
		"a counted refusal":   {vault.Fault{Refuse: true, Times: 1}, "until it is removed"},
		"a refused operation": {vault.Fault{Refuse: true, Op: vault.OpGet}, "by Host alone"},
		"a negative delay":    {vault.Fault{Delay: -1}, "not negative"},
		"a header":            {vault.Fault{Header: map[string]string{"a b": "c"}}, "not the name of a header"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := srv.TryFault(tc.f)
			require.ErrorContains(t, err, tc.text)
			require.Panics(t, func() { srv.AddFault(tc.f) })
		})
	}
	require.Empty(t, srv.Faults())
}

func TestManyCallsAtOnceAreCountedExactly(t *testing.T) {
	r := newRig(t, vault.Config{KeepRequests: 50})
	round := func() {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 5 {
					res, _, err := r.encrypt(context.Background())
					if err != nil || res.StatusCode != 200 {
						t.Errorf("%v %v", res, err)
					}
				}
			})
		}
		wg.Wait()
	}
	r.srv.AddFault(vault.Fault{Op: vault.OpEncrypt, Delay: 50 * time.Millisecond, Times: 64})
	round()
	require.Equal(t, map[string]int{"encrypt": 320}, r.srv.Calls())
	require.Equal(t, 320, r.srv.Count(vault.Match{Op: vault.OpEncrypt, Host: "kvlab", Status: 200}))
	require.Len(t, r.srv.Requests(), 50)
	now, most := r.srv.InFlight()
	require.Zero(t, now)
	require.Greater(t, most, 1)
	before := r.srv.ConnectionsTo("kvlab")
	require.GreaterOrEqual(t, before, 2)
	require.Positive(t, r.srv.OpenConnections())
	round()
	require.Equal(t, before, r.srv.ConnectionsTo("kvlab"), "connections are kept")
	r.srv.ResetCalls()
	require.Empty(t, r.srv.Calls())
	require.Empty(t, r.srv.Requests())
}
