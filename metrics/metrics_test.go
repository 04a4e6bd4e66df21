package metrics_test

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/metrics"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	write = keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: "0123456789abcdef0123456789abcdef"}
	old   = write.WithVersion("fedcba9876543210fedcba9876543210")
)

func newMetrics(t *testing.T) (*prometheus.Registry, *metrics.Metrics) {
	reg := prometheus.NewPedanticRegistry()
	m := metrics.New(reg, metrics.Config{
		Build:      metrics.Build{Version: "v1.2.3", Revision: "abc", GoVersion: "go1.26.8", FIPS140: "off"},
		KeyIDs:     []string{write.KeyID()},
		Operations: []string{"status", "encrypt", "decrypt"},
		Key: func() metrics.Key {
			return metrics.Key{KeyID: write.KeyID(), Phase: status.Usable, Usable: true, Ready: true, MetadataAccess: true, LastSuccess: time.Unix(1_700_000_000, 500_000_000)}
		},
		Conditions: func() []status.Condition {
			return []status.Condition{{Type: status.KeyAvailable, Status: status.True, Reason: "KeyEnabled", Message: "MESSAGECANARY"}}
		},
		Alarms: func() []metrics.Alarm {
			return []metrics.Alarm{{KeyID: old.KeyID(), Severity: status.Critical, Reason: "KeyDisabled"}}
		},
		Credential:      func() keyvault.CredentialState { return keyvault.CredentialState{Method: "client secret"} },
		DroppedLogLines: func() uint64 { return 7 },
	})
	return reg, m
}

func scrape(t *testing.T, reg *prometheus.Registry) string {
	w := httptest.NewRecorder()
	metrics.Handler(reg).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Less(t, w.Body.Len(), 1<<20)
	return w.Body.String()
}

// ours are the lines of a scrape that do not depend on the runtime.
func ours(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), "azure_kms_") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// M02: everything is there, at zero, from the first scrape. The golden file is
// the list of names and labels that dashboards and alerts may rely on.
func TestFirstScrape(t *testing.T) {
	reg, _ := newMetrics(t)
	got := ours(scrape(t, reg))
	const golden = "testdata/first-scrape.txt"
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)

	for _, op := range []string{"status", "encrypt", "decrypt"} {
		for _, reason := range keyvault.Reasons() {
			require.Contains(t, got, fmt.Sprintf("azure_kms_requests_total{key_id_hash=%q,operation=%q,reason=%q} 0\n", keyvault.KeyIDHash(write.KeyID()), op, reason))
		}
	}
	for _, name := range []string{"process_start_time_seconds", "go_goroutines"} {
		require.Contains(t, scrape(t, reg), "\n"+name+" ")
	}
}

func TestLint(t *testing.T) {
	reg, _ := newMetrics(t)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	for _, p := range problems {
		require.False(t, strings.HasPrefix(p.Metric, "azure_kms_"), "%s: %s", p.Metric, p.Text)
	}
}

func TestCounting(t *testing.T) {
	reg, m := newMetrics(t)
	m.Request("decrypt", write.KeyID(), keyvault.Unreachable, 20*time.Millisecond)
	m.Request("decrypt", "", keyvault.UnknownKey, time.Millisecond)
	m.Call(keyvault.Call{Op: keyvault.OpDecrypt, Reason: keyvault.Throttled, Took: 3 * time.Millisecond})
	got := scrape(t, reg)
	for _, line := range []string{
		`azure_kms_requests_total{key_id_hash="` + keyvault.KeyIDHash(write.KeyID()) + `",operation="decrypt",reason="Unreachable"} 1`,
		`azure_kms_requests_total{key_id_hash="unknown",operation="decrypt",reason="UnknownKey"} 1`,
		`azure_kms_request_duration_seconds_bucket{operation="decrypt",le="0.01"} 1`,
		`azure_kms_request_duration_seconds_count{operation="decrypt"} 2`,
		`azure_kms_vault_requests_total{operation="decrypt",reason="Throttled"} 1`,
		`azure_kms_vault_request_duration_seconds_count{operation="decrypt"} 1`,
		`azure_kms_last_success_timestamp_seconds 1.7000000005e+09`,
		`azure_kms_log_lines_dropped_total 7`,
	} {
		require.Contains(t, got, line+"\n")
	}
}

// M01: what callers send does not make series.
func TestBounded(t *testing.T) {
	reg, m := newMetrics(t)
	m.Request("decrypt", "another version", keyvault.Success, time.Millisecond)
	base := strings.Count(scrape(t, reg), "\n")
	for i := range 5000 {
		m.Request("decrypt", fmt.Sprint("id", i), keyvault.UnknownKey, time.Millisecond)
	}
	perKey := 3 * len(keyvault.Reasons())
	require.LessOrEqual(t, strings.Count(scrape(t, reg), "\n"), base+64*perKey)
	require.NotRegexp(t, regexp.MustCompile(`key_id_hash="id`), scrape(t, reg))
	m.Request("decrypt", write.KeyID(), keyvault.BadCiphertext, time.Millisecond)
	require.Contains(t, scrape(t, reg), `key_id_hash="`+keyvault.KeyIDHash(write.KeyID())+`",operation="decrypt",reason="BadCiphertext"} 1`)
}

// What the vault has used keeps its series, and what writes always has its own,
// however many key IDs were made up before.
func TestBounded_WhatIsOursHasItsOwn(t *testing.T) {
	reg, m := newMetrics(t)
	for i := range 500 {
		m.Request("decrypt", fmt.Sprint("made up ", i), keyvault.KeyNotFound, time.Millisecond)
	}
	m.Request("decrypt", "an old version", keyvault.Success, time.Millisecond)
	require.Contains(t, scrape(t, reg), `key_id_hash="`+keyvault.KeyIDHash("an old version")+`",operation="decrypt",reason="Success"} 1`)
	for i := range 500 {
		m.Request("decrypt", fmt.Sprint("old ", i), keyvault.Success, time.Millisecond)
	}
	m.Writes("the next version")
	hash := keyvault.KeyIDHash("the next version")
	m.Request("encrypt", "the next version", keyvault.Success, time.Millisecond)
	require.Contains(t, scrape(t, reg), `azure_kms_write_key{key_id_hash="`+hash+`"} 1`)
	require.Contains(t, scrape(t, reg), `key_id_hash="`+hash+`",operation="encrypt",reason="Success"} 1`)
}

// The hash is that of kube-apiserver's own metrics: sha256 of the key ID's text.

func TestHandler(t *testing.T) {
	reg, _ := newMetrics(t)
	for path, want := range map[string]int{"/": 404, "/debug/pprof/": 404, "/metrics/x": 404, "/metrics": 200} {
		w := httptest.NewRecorder()
		metrics.Handler(reg).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		require.Equal(t, want, w.Code, path)
	}
	w := httptest.NewRecorder()
	metrics.Handler(reg).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/metrics", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
}

func TestConcurrent(t *testing.T) {
	reg, m := newMetrics(t)
	done := make(chan struct{})
	for i := range 8 {
		go func() {
			for j := range 100 {
				m.Request("decrypt", fmt.Sprint(i, j), keyvault.Success, 0)
			}
			done <- struct{}{}
		}()
	}
	for range 8 {
		<-done
	}
	require.Equal(t, 1, strings.Count(scrape(t, reg), `azure_kms_request_duration_seconds_count{operation="decrypt"} 800`))
	require.True(t, slices.Contains(strings.Split(scrape(t, reg), "\n"), `azure_kms_build_info{fips140="off",go_version="go1.26.8",revision="abc",version="v1.2.3"} 1`))
}
