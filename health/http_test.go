package health_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health"
	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

func TestHandler(t *testing.T) {
	var (
		good   = func() error { return nil }
		bad    = func() error { return errors.New("nobody listens\nat /opt/k.sock") }
		usable = func(context.Context) error { return nil }
		lost   = func(context.Context) error {
			return &keyvault.Error{Reason: keyvault.KeyDisabled, Text: "enable it"}
		}
	)
	for _, tc := range []struct {
		name   string
		cfg    health.HandlerConfig
		target string
		status int
		body   string
	}{
		{"livez", health.HandlerConfig{Socket: good, Prober: good, Key: usable}, "/livez", 200, "ok"},
		{"livez whatever the vault does", health.HandlerConfig{Socket: good, Prober: good, Key: lost}, "/livez", 200, "ok"},
		{"livez without a socket", health.HandlerConfig{Socket: bad, Prober: good, Key: usable}, "/livez", 503, "socket: nobody listens at /opt/k.sock\n"},
		{"livez with a late prober", health.HandlerConfig{Socket: good, Prober: bad, Key: usable}, "/livez", 503, "prober: nobody listens at /opt/k.sock\n"},
		{"livez verbose", health.HandlerConfig{Socket: good, Prober: bad, Key: usable}, "/livez?verbose", 503, "[+]socket ok\n[-]prober: nobody listens at /opt/k.sock\n"},
		{"healthz is livez", health.HandlerConfig{Socket: good, Prober: good, Key: lost}, "/healthz", 200, "ok"},
		{"healthz at its path", health.HandlerConfig{Socket: good, Prober: good, Key: lost, HealthzPath: "/up"}, "/up", 200, "ok"},
		{"healthz at the root", health.HandlerConfig{Socket: good, Prober: good, Key: lost, HealthzPath: "/"}, "/", 200, "ok"},
		{"the root is no catch-all", health.HandlerConfig{Socket: good, Prober: good, Key: lost, HealthzPath: "/"}, "/nope", 404, "404 page not found\n"},
		{"healthz follows the key", health.HandlerConfig{Socket: good, Prober: good, Key: lost, FollowKey: true}, "/healthz", 503, "key: KeyDisabled: enable it\n"},
		{"but livez does not", health.HandlerConfig{Socket: good, Prober: good, Key: lost, FollowKey: true}, "/livez?verbose", 200, "[+]socket ok\n[+]prober ok\n"},
		{"readyz", health.HandlerConfig{Socket: bad, Prober: good, Key: usable}, "/readyz", 200, "ok"},
		{"readyz with a late prober", health.HandlerConfig{Socket: good, Prober: bad, Key: usable}, "/readyz", 503, "prober: nobody listens at /opt/k.sock\n"},
		{"readyz of a lost key", health.HandlerConfig{Socket: good, Prober: good, Key: lost}, "/readyz", 503, "key: KeyDisabled: enable it\n"},
		{"readyz verbose", health.HandlerConfig{Socket: good, Prober: good, Key: usable}, "/readyz?verbose", 200, "[+]prober ok\n[+]key ok\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			health.Handler(tc.cfg).ServeHTTP(w, httptest.NewRequest(http.MethodGet, tc.target, nil))
			require.Equal(t, tc.status, w.Code)
			require.Equal(t, tc.body, w.Body.String())
		})
	}
	t.Run("the document and the page", func(t *testing.T) {
		document := func() *status.Document {
			return &status.Document{APIVersion: status.APIVersion, Kind: status.Kind, ObservedTime: time.Now(), Phase: status.Lost, Key: "<key>"}
		}
		get := func(healthz, target string) *httptest.ResponseRecorder {
			h := health.Handler(health.HandlerConfig{Socket: good, Prober: good, Key: lost, Status: document, HealthzPath: healthz})
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
			return w
		}
		w := get("", "/status")
		require.Equal(t, 200, w.Code, "the document speaks for itself")
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		d, err := status.Decode(w.Body)
		require.NoError(t, err)
		require.Equal(t, status.Lost, d.Phase)

		w = get("", "/")
		require.Equal(t, 200, w.Code)
		require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		require.Contains(t, w.Body.String(), "<title>Lost - &lt;key&gt; - azure-kms-plugin</title>")
		require.NotContains(t, w.Body.String(), "<key>")
		require.Equal(t, 404, get("", "/nope").Code)

		// A health check may be anywhere, and the others stay where they are.
		for _, path := range []string{"/", "/status"} {
			require.Equal(t, "ok", get(path, path).Body.String())
			require.Equal(t, 404, get(path, "/healthz").Code)
		}
		require.Equal(t, "application/json", get("/", "/status").Header().Get("Content-Type"))
		require.Equal(t, "text/html; charset=utf-8", get("/status", "/").Header().Get("Content-Type"))
		require.Equal(t, 503, get("/readyz", "/readyz").Code, "it means the key")
		require.Equal(t, "ok", get("/livez", "/livez").Body.String())
	})
	t.Run("other methods", func(t *testing.T) {
		h := health.Handler(health.HandlerConfig{Socket: good, Prober: good, Key: usable, Status: func() *status.Document { return &status.Document{} }})
		for _, path := range []string{"/livez", "/healthz", "/readyz", "/status", "/"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
			require.Equal(t, http.StatusMethodNotAllowed, w.Code)
			require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
			w = httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodHead, path, nil))
			require.Equal(t, http.StatusOK, w.Code)
		}
	})
}

// K10: a health check that has to wait ends within its time-out, and none of
// them asks the vault.
func TestHandler_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := health.NewTracker(health.Config{Key: key})
		ok := func() error { return nil }
		h := health.Handler(health.HandlerConfig{Socket: ok, Prober: ok, Key: tr.Usable, FollowKey: true, Timeout: 7 * time.Second})
		begin := time.Now()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		require.Equal(t, 503, w.Code)
		require.Equal(t, 7*time.Second, time.Since(begin))
		require.Contains(t, w.Body.String(), "key: Unreachable: ")
	})
}

// H02: half an hour without a vault does not make the process look broken.
func TestHandler_LivezInOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &fakeVault{fail: always(keyvault.Unreachable)}, health.Graces{}, "")
		h := health.Handler(health.HandlerConfig{Socket: func() error { return nil }, Prober: r.prober.Late, Key: r.tracker.Usable})
		for range 180 {
			time.Sleep(10 * time.Second)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/livez", nil))
			require.Equal(t, 200, w.Code)
			w = httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			require.Equal(t, 503, w.Code)
			require.Equal(t, "key: Unreachable: scripted\n", w.Body.String())
		}
	})
}

// A prober that is stuck leaves good evidence behind, which grows old.
func TestHandler_ReadyzWithStuckProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		h := health.Handler(health.HandlerConfig{Socket: func() error { return nil }, Prober: r.prober.Late, Key: r.tracker.Usable})
		time.Sleep(time.Minute)
		v.set(func(v *fakeVault) { v.took = time.Hour }) // a client that breaks its promise
		time.Sleep(3 * time.Minute)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		require.Equal(t, 503, w.Code)
		require.Contains(t, w.Body.String(), "prober: the prober has not moved for ")
	})
}
