package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"azure-kms-plugin/health/page"
	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// HandlerConfig configures Handler. The functions are required, but for Status.
type HandlerConfig struct {
	// Socket returns an error when callers no longer reach this process
	// through its socket.
	Socket func() error
	// Prober returns an error when the prober does not get on.
	Prober func() error
	// Key returns an error when the key cannot be used now. It may wait for
	// the first probe after a start, as long as its context lives.
	Key func(context.Context) error
	// Status makes the status document, from memory. Without it, neither the
	// document nor the page for people is served.
	Status func() *status.Document
	// HealthzPath is the path of the endpoint that existing manifests probe;
	// empty means /healthz.
	HealthzPath string
	// FollowKey makes that endpoint fail with the key, as the existing
	// plugins' does. By default it is about this process alone: restarting a
	// process cannot mend a vault.
	FollowKey bool
	// Timeout bounds an answer; zero means 20 s.
	Timeout time.Duration
}

// A check is one line of a verbose answer.
type check struct {
	name string
	run  func(context.Context) error
}

// Handler serves /livez, /healthz (or HealthzPath) and /readyz. Each answers
// 200 and "ok", or 503 and the cause; ?verbose lists the checks. It also serves
// the status document, as JSON at /status and as a page for people at /. Both say by
// what they hold how the key is, so their status is always 200. None of them makes a
// call to the vault.
//
// Existing manifests may probe any path: HealthzPath comes before the document and the
// page. /livez and /readyz always mean what they say.
func Handler(cfg HandlerConfig) http.Handler {
	if cfg.HealthzPath == "" {
		cfg.HealthzPath = "/healthz"
	}
	if cfg.HealthzPath == "/" {
		cfg.HealthzPath = root
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 20 * time.Second
	}
	live := []check{
		{"socket", func(context.Context) error { return cfg.Socket() }},
		{"prober", func(context.Context) error { return cfg.Prober() }},
	}
	key := check{"key", cfg.Key}
	healthz := live
	if cfg.FollowKey {
		healthz = append(live[:len(live):len(live)], key)
	}
	// A later one takes the place of an earlier one.
	handlers := map[string]http.HandlerFunc{}
	if cfg.Status != nil {
		handlers["/status"] = func(w http.ResponseWriter, _ *http.Request) { serveDocument(w, cfg.Status()) }
		handlers[root] = func(w http.ResponseWriter, _ *http.Request) { page.Serve(w, page.Status(cfg.Status())) }
	}
	handlers[cfg.HealthzPath] = answer(healthz, cfg.Timeout)
	handlers["/livez"] = answer(live, cfg.Timeout)
	// What a prober that is stuck has found long ago says nothing about now.
	handlers["/readyz"] = answer([]check{live[1], key}, cfg.Timeout)
	mux := http.NewServeMux()
	for path, h := range handlers {
		mux.Handle(path, reading(h))
	}
	return mux
}

// root is the pattern of the path "/" alone.
const root = "/{$}"

// reading refuses what is not a request to read.
func reading(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		h(w, r)
	}
}

func serveDocument(w http.ResponseWriter, d *status.Document) {
	data, err := document(d)
	if err != nil {
		http.Error(w, "the status document cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // who has gone needs no answer
}

// document is the text of a document, wherever it is read.
func document(d *status.Document) ([]byte, error) {
	data, err := json.MarshalIndent(d, "", "  ")
	return append(data, '\n'), err
}

func answer(checks []check, timeout time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		var lines, faults strings.Builder
		for _, c := range checks {
			if err := c.run(ctx); err != nil {
				fmt.Fprintf(&lines, "[-]%s: %s\n", c.name, oneLine(err))
				fmt.Fprintf(&faults, "%s: %s\n", c.name, oneLine(err))
				continue
			}
			fmt.Fprintf(&lines, "[+]%s ok\n", c.name)
		}
		_, verbose := r.URL.Query()["verbose"]
		if faults.Len() > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			if !verbose {
				fmt.Fprint(w, faults.String())
				return
			}
		}
		switch {
		case verbose:
			fmt.Fprint(w, lines.String())
		default:
			fmt.Fprint(w, "ok")
		}
	}
}

// oneLine is the text of err, which for a failure of the key begins with its reason.
func oneLine(err error) string {
	if e, ok := errors.AsType[*keyvault.Error](err); ok {
		err = e
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
