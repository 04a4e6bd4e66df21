// Package page tests the pages for people in a real browser, headless Chromium.
//
// Start with [Find] and [Open]. The browser is spoken to by its DevTools protocol over
// two pipes, which needs no library and no port.
package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// Find returns the path of Chromium, or an error that says what to install.
func Find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no Chromium is installed, which the tests of the pages for people need: apt-get install --no-install-recommends chromium, or put a chromium in PATH")
}

// A Browser is a running Chromium. Its methods are for one goroutine.
type Browser struct {
	cmd *exec.Cmd
	to  *os.File

	mu      sync.Mutex
	last    int
	waiting map[int]chan message
	tabs    map[string]chan message // what they tell unasked, by session
	err     error                   // why no more is read
}

// maxEvents is far more than a page makes between two looks; more are dropped.
const maxEvents = 1000

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Open starts the Chromium at path with an empty profile in dir. It talks to nobody
// but the pages that it is sent to.
func Open(path, dir string) (*Browser, error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	b := &Browser{to: in, waiting: map[int]chan message{}, tabs: map[string]chan message{}}
	b.cmd = exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", "--user-data-dir="+dir, "about:blank")
	b.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	err = b.cmd.Start()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	go b.read(out)
	return b, nil
}

// Close ends the browser.
func (b *Browser) Close() error {
	_ = b.cmd.Process.Kill() // it may have ended by itself
	b.to.Close()
	_ = b.cmd.Wait() // it was killed
	return nil
}

func (b *Browser) read(out io.ReadCloser) {
	defer out.Close()
	r := bufio.NewReader(out)
	for {
		text, err := r.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		b.mu.Lock()
		if err != nil {
			b.err = fmt.Errorf("reading from the browser: %w", err)
			for _, w := range b.waiting {
				close(w)
			}
			for _, tab := range b.tabs {
				close(tab)
			}
			b.waiting, b.tabs = nil, nil
			b.mu.Unlock()
			return
		}
		w, tab := b.waiting[m.ID], b.tabs[m.SessionID]
		delete(b.waiting, m.ID)
		b.mu.Unlock()
		switch {
		case w != nil:
			w <- m
		case tab != nil && m.Method != "":
			select {
			case tab <- m:
			default:
			}
		}
	}
}

// call has the browser do something in a session; empty for the browser itself.
func (b *Browser) call(ctx context.Context, session, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	b.mu.Lock()
	if b.err != nil {
		defer b.mu.Unlock()
		return b.err
	}
	b.last++
	id, w := b.last, make(chan message, 1)
	b.waiting[id] = w
	b.mu.Unlock()
	text, err := json.Marshal(message{ID: id, SessionID: session, Method: method, Params: raw})
	if err != nil {
		return err
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		return fmt.Errorf("writing to the browser: %w", err)
	}
	select {
	case m, ok := <-w:
		switch {
		case !ok:
			return b.err
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result != nil:
			return json.Unmarshal(m.Result, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	}
}
