package page

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

type args = map[string]any

// A Tab shows pages, one after the other.
type Tab struct {
	b       *Browser
	target  string
	session string
	events  chan message
	page    string // the loader of the one that is shown

	complaints, requests []string
}

// NewTab opens an empty one, of a width in CSS pixels.
func (b *Browser) NewTab(ctx context.Context, width int, dark bool) (*Tab, error) {
	var target struct{ TargetID string }
	var attached struct{ SessionID string }
	if err := b.call(ctx, "", "Target.createTarget", args{"url": "about:blank"}, &target); err != nil {
		return nil, err
	}
	if err := b.call(ctx, "", "Target.attachToTarget", args{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		return nil, err
	}
	t := &Tab{b: b, target: target.TargetID, session: attached.SessionID, events: make(chan message, maxEvents)}
	b.mu.Lock()
	b.tabs[t.session] = t.events
	b.mu.Unlock()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	for _, step := range []struct {
		method string
		params args
	}{
		{"Page.enable", nil},
		{"Page.setLifecycleEventsEnabled", args{"enabled": true}},
		{"Log.enable", nil},
		{"Runtime.enable", nil},
		{"Network.enable", nil},
		{"Accessibility.enable", nil},
		{"Emulation.setDeviceMetricsOverride", args{"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 700}},
		{"Emulation.setEmulatedMedia", args{"features": []args{{"name": "prefers-color-scheme", "value": scheme}}}},
	} {
		if step.params == nil {
			step.params = args{}
		}
		if err := t.call(ctx, step.method, step.params, nil); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Tab) call(ctx context.Context, method string, params args, result any) error {
	return t.b.call(ctx, t.session, method, params, result)
}

// Hold keeps the page that is shown as it is: it does not make itself anew, nor grow
// old. What is looked at would else change under the eye on a slow machine.
func (t *Tab) Hold(ctx context.Context) error {
	for _, step := range []struct {
		method string
		params args
	}{
		{"Page.stopLoading", args{}},
		{"Animation.enable", args{}},
		{"Animation.setPlaybackRate", args{"playbackRate": 0}},
	} {
		if err := t.call(ctx, step.method, step.params, nil); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the tab.
func (t *Tab) Close(ctx context.Context) error {
	return t.b.call(ctx, "", "Target.closeTarget", args{"targetId": t.target}, nil)
}

// Show loads a page.
func (t *Tab) Show(ctx context.Context, url string) error {
	var nav struct{ LoaderID, ErrorText string }
	if err := t.call(ctx, "Page.navigate", args{"url": url}, &nav); err != nil {
		return err
	}
	if nav.ErrorText != "" {
		return fmt.Errorf("loading %s: %s", url, nav.ErrorText)
	}
	return t.await(ctx, func(page string) bool { return page == nav.LoaderID })
}

// Reloaded waits until another page has taken the place of the one that is shown.
func (t *Tab) Reloaded(ctx context.Context) error {
	return t.await(ctx, func(page string) bool { return page != t.page })
}

func (t *Tab) await(ctx context.Context, loaded func(page string) bool) error {
	for {
		select {
		case e, ok := <-t.events:
			if !ok {
				return t.b.err
			}
			t.note(e)
			var p struct{ LoaderID, Name string }
			if e.Method == "Page.lifecycleEvent" && json.Unmarshal(e.Params, &p) == nil && p.Name == "load" && loaded(p.LoaderID) {
				t.page = p.LoaderID
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("waiting for a page: %w", ctx.Err())
		}
	}
}

// note keeps what an event tells about the page.
func (t *Tab) note(e message) {
	switch e.Method {
	case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown":
		t.complaints = append(t.complaints, string(e.Params))
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		if json.Unmarshal(e.Params, &p) == nil && !strings.HasPrefix(p.Request.URL, "data:") {
			t.requests = append(t.requests, p.Request.URL)
		}
	}
}

// seen takes in what has been told so far.
func (t *Tab) seen() {
	for {
		select {
		case e, ok := <-t.events:
			if !ok {
				return
			}
			t.note(e)
		default:
			return
		}
	}
}

// Complaints are what the console of the browser shows: errors of scripts and of
// loading, and what a Content-Security-Policy has blocked.
func (t *Tab) Complaints() []string { t.seen(); return t.complaints }

// Requests are the URLs that were asked for.
func (t *Tab) Requests() []string { t.seen(); return t.requests }

// Eval evaluates an expression in the page, as its developer would at the console.
func (t *Tab) Eval(ctx context.Context, expression string, into any) error {
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Text string }
	}
	if err := t.call(ctx, "Runtime.evaluate", args{"expression": expression, "returnByValue": true}, &r); err != nil {
		return err
	}
	if r.ExceptionDetails != nil {
		return fmt.Errorf("%s: %s", expression, r.ExceptionDetails.Text)
	}
	return json.Unmarshal(r.Result.Value, into)
}

// Roles counts what the page is to a screen reader, by role.
func (t *Tab) Roles(ctx context.Context) (map[string]int, error) {
	var tree struct {
		Nodes []struct {
			Ignored bool
			Role    struct{ Value string }
		}
	}
	if err := t.call(ctx, "Accessibility.getFullAXTree", args{}, &tree); err != nil {
		return nil, err
	}
	roles := map[string]int{}
	for _, n := range tree.Nodes {
		if !n.Ignored {
			roles[n.Role.Value]++
		}
	}
	return roles, nil
}

// Screenshot is what is seen of the page, or the whole page, as PNG; grey without its colours.
func (t *Tab) Screenshot(ctx context.Context, whole, grey bool) ([]byte, error) {
	vision := "none"
	if grey {
		vision = "achromatopsia"
	}
	if err := t.call(ctx, "Emulation.setEmulatedVisionDeficiency", args{"type": vision}, nil); err != nil {
		return nil, err
	}
	var shot struct{ Data []byte }
	err := t.call(ctx, "Page.captureScreenshot", args{"format": "png", "captureBeyondViewport": whole}, &shot)
	return shot.Data, err
}
