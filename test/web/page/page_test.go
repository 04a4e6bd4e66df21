package page_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health"
	"azure-kms-plugin/health/status"
	"azure-kms-plugin/test/web/page"
	"azure-kms-plugin/test/web/statusdoc"
)

// shots is a folder to leave pictures of the pages in, for somebody to look at.
var shots = flag.String("shots", "", "a folder to write screenshots to")

var browser *page.Browser

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(withBrowser(m.Run))
}

func withBrowser(run func() int) int {
	path, err := page.Find()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "chromium-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if browser, err = page.Open(path, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer browser.Close()
	return run()
}

// serve serves documents as the plugin does.
func serve(t *testing.T, document func() *status.Document) string {
	ok := func() error { return nil }
	srv := httptest.NewServer(health.Handler(health.HandlerConfig{
		Socket: ok, Prober: ok, Key: func(context.Context) error { return nil }, Status: document,
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/"
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open shows a page that stays as it is.
func open(t *testing.T, width int, dark bool, url string) *page.Tab {
	t.Helper()
	tab := openLive(t, width, dark, url)
	require.NoError(t, tab.Hold(patient(t)))
	return tab
}

func openLive(t *testing.T, width int, dark bool, url string) *page.Tab {
	t.Helper()
	tab, err := browser.NewTab(patient(t), width, dark)
	require.NoError(t, err)
	t.Cleanup(func() {
		// Not the test's context: that has ended.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, tab.Close(ctx))
	})
	require.NoError(t, tab.Show(patient(t), url))
	return tab
}

func eval[T any](t *testing.T, tab *page.Tab, expression string) (v T) {
	t.Helper()
	require.NoError(t, tab.Eval(patient(t), expression, &v))
	return v
}

const (
	text     = `document.body.innerText`
	sideways = `document.documentElement.scrollWidth - document.documentElement.clientWidth`
)

// Every state is told in words, on wide and narrow screens, by nothing but the page itself.
func TestPage_States(t *testing.T) {
	meaning := map[status.Phase]string{
		status.Starting: "is not known yet", status.Usable: "The key works", status.Degraded: "the cluster does not feel it yet",
		status.ReadOnly: "refuses to encrypt", status.CutOff: "so that the others serve", status.Lost: "stops writing secrets",
	}
	for phase, d := range statusdoc.Samples(time.Now()) {
		t.Run(string(phase), func(t *testing.T) {
			url := serve(t, func() *status.Document { return d })
			for _, width := range []int{360, 1200} {
				tab := open(t, width, false, url)
				shown := eval[string](t, tab, text)
				require.True(t, strings.HasPrefix(eval[string](t, tab, `document.title`), string(phase)), "what the tab says")
				want := []string{string(phase), meaning[phase], d.Key, d.Instance.Node, d.Instance.ID, "Made at " + d.ObservedTime.UTC().Format("2006-01-02 15:04:05 UTC")}
				for _, c := range d.Conditions {
					want = append(want, string(c.Type), string(c.Status), c.Reason, once(d, c.Message))
				}
				if d.Phase == status.Usable {
					want = append(want, "1 warning below.")
				}
				for _, k := range d.Keys {
					want = append(want, k.Version, k.KeyID, fmt.Sprintf("%d encrypts, %d decrypts", k.Encrypts, k.Decrypts))
				}
				for _, a := range d.Alarms {
					want = append(want, string(a.Severity)+": "+a.Reason, once(d, a.Text))
				}
				if d.Failure != nil {
					want = append(want, d.Failure.Reason, d.Failure.Text)
				}
				if !d.Answer.OK {
					want = append(want, "not ok: "+once(d, d.Answer.Text))
				}
				for _, w := range want {
					require.Contains(t, shown, w)
				}
				require.NotContains(t, shown, "This page is old")
				require.LessOrEqual(t, eval[int](t, tab, sideways), 0, "scrolls sideways at %d", width)
				require.Equal(t, 1, eval[int](t, tab, `document.querySelectorAll("h1").length`))
				require.Equal(t, "en", eval[string](t, tab, `document.documentElement.lang`))
				require.Empty(t, tab.Complaints())
				require.Equal(t, []string{url}, tab.Requests(), "nothing comes from elsewhere")
				picture(t, tab, fmt.Sprintf("%s-%d", phase, width), false)
			}
		})
	}
}

// once is a text without what the page has said of the failure already.
func once(d *status.Document, text string) string {
	if d.Failure == nil {
		return text
	}
	return strings.ReplaceAll(text, d.Failure.Text, "see above")
}

// A banner is not green above an alarm that somebody has to act on now.
func TestPage_UsableWithAnAlarm(t *testing.T) {
	d := statusdoc.Samples(time.Now())[status.Usable]
	old := d.Keys[1]
	d.Alarms = append([]status.Alarm{{
		Severity: status.Critical, Reason: "KeyDisabled", Version: old.Version, KeyID: old.KeyID, Text: "Data is under this old version. Enable it; restart nothing.",
	}}, d.Alarms...)
	for _, width := range []int{360, 1200} {
		tab := open(t, width, false, serve(t, func() *status.Document { return d }))
		const word = "Usable, but older data is in danger (KeyDisabled)"
		require.Contains(t, eval[string](t, tab, `document.title`), word)
		require.Equal(t, "X"+word, eval[string](t, tab, `document.querySelector(".banner.bad .word").textContent`))
		require.NotContains(t, eval[string](t, tab, text), "Secrets can be read and written")
		require.LessOrEqual(t, eval[int](t, tab, sideways), 0, "scrolls sideways at %d", width)
		picture(t, tab, fmt.Sprintf("Usable-alarm-%d", width), false)
	}
}

func picture(t *testing.T, tab *page.Tab, name string, grey bool) {
	if *shots == "" {
		return
	}
	png, err := tab.Screenshot(patient(t), !strings.Contains(name, "360"), grey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o644))
}

// What is told by colour is told without: each tone has its word, its sign and its
// kind of line.
func TestPage_WithoutColour(t *testing.T) {
	seen := map[string]bool{}
	for phase, tone := range map[status.Phase]string{status.Starting: "?", status.Usable: "+", status.Degraded: "!", status.Lost: "X"} {
		d := statusdoc.Samples(time.Now())[phase]
		tab := open(t, 1200, false, serve(t, func() *status.Document { return d }))
		require.Equal(t, tone, eval[string](t, tab, `document.querySelector(".banner .sign").innerText`))
		require.Contains(t, eval[string](t, tab, `document.querySelector(".banner .word").innerText`), string(phase))
		line := eval[string](t, tab, `getComputedStyle(document.querySelector(".banner")).borderTopStyle`)
		require.False(t, seen[line], "%s has a line of its own", phase)
		seen[line] = true
		picture(t, tab, string(phase)+"-grey", true)
	}
}

// Text stands out from what is behind it by 4.5 to 1 at least, as WCAG wants it.
func TestPage_Contrast(t *testing.T) {
	const worst = `(() => {
		const light = c => { const v = c.match(/[\d.]+/g).slice(0, 3).map(x => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4 }); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2] };
		const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c != "rgba(0, 0, 0, 0)") return c } return "rgb(255, 255, 255)" };
		let least = 99;
		for (const e of document.querySelectorAll("body *")) {
			if (![...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim())) continue;
			const a = light(getComputedStyle(e).color), b = light(behind(e));
			least = Math.min(least, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
		}
		return least;
	})()`
	for phase, d := range statusdoc.Samples(time.Now()) {
		for _, dark := range []bool{false, true} {
			tab := open(t, 1200, dark, serve(t, func() *status.Document { return d }))
			require.GreaterOrEqual(t, eval[float64](t, tab, worst), 4.5, "%s, dark: %v", phase, dark)
			if dark {
				picture(t, tab, string(phase)+"-dark", false)
			}
		}
	}
}

// A screen reader finds headings and tables with headers, on a narrow screen as well.
func TestPage_Accessible(t *testing.T) {
	d := statusdoc.Samples(time.Now())[status.Lost]
	url := serve(t, func() *status.Document { return d })
	var wide map[string]int
	for _, width := range []int{1200, 360} {
		roles, err := open(t, width, false, url).Roles(patient(t))
		require.NoError(t, err)
		for _, role := range []string{"heading", "main", "table", "row", "rowheader", "columnheader", "cell"} {
			require.NotZero(t, roles[role], "%s at %d", role, width)
			if wide != nil {
				require.Equal(t, wide[role], roles[role], "%s at %d", role, width)
			}
		}
		wide = roles
	}
}

// The page makes itself anew, by itself; and when it no longer can, it says so.
func TestPage_Refreshes(t *testing.T) {
	samples := statusdoc.Samples(time.Now())
	var loads atomic.Int64
	handler := health.Handler(health.HandlerConfig{Status: func() *status.Document {
		if loads.Load() == 1 {
			return samples[status.Usable]
		}
		return samples[status.Lost]
	}})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loads.Add(1) > 2 {
			// The browser keeps the page that it has, as it does while a server hangs.
			// (While it waits for one, it does not answer the test.)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	defer srv.Close()
	url := srv.URL + "/"
	tab := openLive(t, 1200, false, url)
	require.True(t, strings.HasPrefix(eval[string](t, tab, `document.title`), "Usable"))
	require.NoError(t, tab.Reloaded(patient(t)))
	require.True(t, strings.HasPrefix(eval[string](t, tab, `document.title`), "Lost"))
	require.NotContains(t, eval[string](t, tab, text), "This page is old")
	require.Eventually(t, func() bool {
		return strings.Contains(eval[string](t, tab, text), "This page is old")
	}, time.Minute, 100*time.Millisecond)
	require.Contains(t, eval[string](t, tab, text), "Lost", "what was is still there")
	require.Empty(t, tab.Complaints())
	picture(t, tab, "old", false)
}

// Whatever is in a document is text on the page, and nothing else.
func TestPage_Hostile(t *testing.T) {
	d := statusdoc.Hostile(time.Now())
	url := serve(t, func() *status.Document { return d })
	for _, width := range []int{360, 1200} {
		tab := open(t, width, false, url)
		require.NotEqual(t, "pwned", eval[string](t, tab, `document.title`))
		require.Zero(t, eval[int](t, tab, `document.querySelectorAll("script, img, iframe, [onerror]").length`))
		require.Contains(t, eval[string](t, tab, text), `"><script>document.title="pwned"</script>`)
		require.Contains(t, eval[string](t, tab, text), "&lt;", "escaped once, not twice or never")
		require.NotContains(t, eval[string](t, tab, `document.documentElement.outerHTML`), "\u202e")
		require.LessOrEqual(t, eval[int](t, tab, sideways), 0, "scrolls sideways at %d", width)
		require.Empty(t, tab.Complaints())
		require.Equal(t, []string{url}, tab.Requests())
		picture(t, tab, fmt.Sprintf("hostile-%d", width), false)
	}
}

// Scripts and styles that got into the page all the same would not be obeyed.
func TestPage_Policy(t *testing.T) {
	d := statusdoc.Samples(time.Now())[status.Usable]
	plugin := serve(t, func() *status.Document { return d })
	resp, err := http.Get(plugin)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", resp.Header.Get("Content-Security-Policy"))
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<title>safe</title><link rel="icon" href="data:,"><style>body{color:red}</style><body style="color:red"><script>document.title="pwned"</script>`)
	}))
	defer srv.Close()
	tab := open(t, 1200, false, srv.URL+"/")
	require.Equal(t, "safe", eval[string](t, tab, `document.title`))
	require.NotEqual(t, "rgb(255, 0, 0)", eval[string](t, tab, `getComputedStyle(document.body).color`))
	require.Eventually(t, func() bool { return len(tab.Complaints()) == 3 }, time.Minute, 10*time.Millisecond, "the test sees what is blocked")
}
