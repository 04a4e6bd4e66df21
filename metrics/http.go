package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves what reg gathers at /metrics, and nothing else.
func Handler(reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		Registry:            nil, // the scrapes themselves are not counted
		MaxRequestsInFlight: 8,
		DisableCompression:  true, // a compressor takes more memory than all that it would compress
	}))
	return mux
}
