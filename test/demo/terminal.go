package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// A terminal prints plain text. Colour and a moving bar are for people only:
// neither appears when the output is no terminal, and no colour with NO_COLOR.
type terminal struct {
	w      io.Writer
	colour bool
	moves  bool // a line may be drawn over
	act    int
}

func newTerminal(w io.Writer) *terminal {
	t := &terminal{w: w}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		t.moves = true
		t.colour = os.Getenv("NO_COLOR") == ""
	}
	return t
}

func (t *terminal) paint(code, s string) string {
	if !t.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *terminal) bold(s string) string  { return t.paint("1", s) }
func (t *terminal) green(s string) string { return t.paint("32", s) }
func (t *terminal) faint(s string) string { return t.paint("2", s) }

// title begins an act.
func (t *terminal) title(s string) {
	t.act++
	fmt.Fprintf(t.w, "\n%s\n", t.bold(fmt.Sprintf("%d  %s", t.act, s)))
}

// say prints a line as it is.
func (t *terminal) say(format string, args ...any) { fmt.Fprintf(t.w, format+"\n", args...) }

// item prints a name and what there is to say about it.
func (t *terminal) item(name, format string, args ...any) {
	fmt.Fprintf(t.w, "   %-12s %s\n", name, fmt.Sprintf(format, args...))
}

// good prints an item that is a success.
func (t *terminal) good(format string, args ...any) {
	fmt.Fprintf(t.w, "   %s\n", t.green(fmt.Sprintf(format, args...)))
}

// A bar shows how far a piece of work is.
type bar struct {
	t       *terminal
	what    string
	total   int
	started time.Time
	drawn   time.Time
	quarter int // quarters that were told, when no line may be drawn over
}

func (t *terminal) bar(what string, total int) *bar {
	return &bar{t: t, what: what, total: total, started: time.Now()}
}

// set shows that done are done. It is called by one goroutine.
func (b *bar) set(done int) {
	if !b.t.moves {
		if q := done * 4 / b.total; q > b.quarter {
			b.quarter = q
			b.t.say("   %s %s of %s", b.what, thousands(done), thousands(b.total))
		}
		return
	}
	if done < b.total && time.Since(b.drawn) < 40*time.Millisecond {
		return
	}
	b.drawn = time.Now()
	rate := float64(done) / max(time.Since(b.started).Seconds(), 1e-3)
	b.t.gauge(b.what, float64(done)/float64(b.total), fmt.Sprintf("%s of %s, %s a second",
		thousands(done), thousands(b.total), thousands(int(rate))))
}

// gauge draws over the line how much of something there is.
func (t *terminal) gauge(what string, share float64, text string) {
	const width = 40
	full := int(width * share)
	fmt.Fprintf(t.w, "\r   %s [%s%s] %s\x1b[K", what,
		t.green(strings.Repeat("#", full)), strings.Repeat("-", width-full), text)
}

// end leaves the line of the bar.
func (b *bar) end() {
	if b.t.moves {
		fmt.Fprintln(b.t.w)
	}
}

// thousands writes n with a comma before every three digits.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
