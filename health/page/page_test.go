package page

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The rest of what a page is, is tested in a browser, in the module test/web.
func TestPage_TextStaysText(t *testing.T) {
	p := New(Frame{Title: "<t>", Heading: `"h"`, Made: time.Unix(0, 0)})
	p.Table([]string{"a", `b"><script>`}, [][]Cell{{Lines("x"), Toned(Bad, "a\u202eb\x00c\xffd\te\n")}})
	html := string(p.Bytes())
	require.Contains(t, html, "<title>&lt;t&gt;</title>")
	require.Contains(t, html, `data-head="b&#34;&gt;&lt;script&gt;"`)
	require.Contains(t, html, "a\ufffdb\ufffdc\ufffdd e ")
	require.NotContains(t, html, "<script")
}

func TestPage_When(t *testing.T) {
	p := New(Frame{Made: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)})
	for d, want := range map[time.Duration]string{
		0: "now", -59 * time.Second: "59 s ago", 61 * time.Second: "in 1 min 1 s", -47 * time.Hour: "47 h 0 min ago", 90 * 24 * time.Hour: "in 90 days",
	} {
		require.True(t, strings.HasSuffix(p.When(new(p.made.Add(d))), " UTC ("+want+")"), "%v: %s", d, p.When(new(p.made.Add(d))))
	}
	require.Empty(t, p.When(nil))
	require.Empty(t, p.When(new(time.Time{})))
}

func TestServe_Headers(t *testing.T) {
	w := httptest.NewRecorder()
	Serve(w, New(Frame{}).Bytes())
	policy := w.Header().Get("Content-Security-Policy")
	require.True(t, strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-"), policy)
	require.NotContains(t, policy, "unsafe")
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
}
