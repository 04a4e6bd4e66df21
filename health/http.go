package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"azure-kms-plugin/keyvault"
)

// HandlerConfig configures Handler. The functions are required.
type HandlerConfig struct {
	// Socket returns an error when callers no longer reach this process
	// through its socket.
	Socket func() error
	// Prober returns an error when the prober does not get on.
	Prober func() error
	// Key returns an error when the key cannot be used now. It may wait for
	// the first probe after a start, as long as its context lives.
	Key func(context.Context) error
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
// 200 and "ok", or 503 and the cause; ?verbose lists the checks. None of them
// makes a call to the vault.
func Handler(cfg HandlerConfig) http.Handler {
	if cfg.HealthzPath == "" {
		cfg.HealthzPath = "/healthz"
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
	mux := http.NewServeMux()
	handle := func(path string, checks []check) {
		mux.Handle(path, answer(checks, cfg.Timeout))
	}
	handle("/livez", live)
	// What a prober that is stuck has found long ago says nothing about now.
	handle("/readyz", []check{live[1], key})
	if cfg.HealthzPath == "/" {
		cfg.HealthzPath = "/{$}"
	}
	handle(cfg.HealthzPath, healthz)
	return mux
}

func answer(checks []check, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
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
	})
}

// oneLine is the text of err, which for a failure of the key begins with its reason.
func oneLine(err error) string {
	if e, ok := errors.AsType[*keyvault.Error](err); ok {
		err = e
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
