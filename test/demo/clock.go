package main

import (
	"fmt"
	"time"
)

// A clock counts down to something that is about to happen. On a terminal it is
// a line that moves; elsewhere it is told once.
type clock struct {
	t     *terminal
	what  string
	left  string // a format of the time that is left
	total time.Duration
	until time.Time
	drawn time.Time
	ended bool
}

func (t *terminal) clock(what, left string, total time.Duration) *clock {
	c := &clock{t: t, what: what, left: left, total: max(total, time.Second), until: time.Now().Add(total)}
	if !t.moves {
		t.say("   %s "+left, what, total.Round(time.Second))
	}
	c.tick()
	return c
}

// tick shows how long there is left. It is called by one goroutine.
func (c *clock) tick() {
	if !c.t.moves || c.ended || time.Since(c.drawn) < 90*time.Millisecond {
		return
	}
	c.drawn = time.Now()
	left := max(0, time.Until(c.until))
	text := fmt.Sprintf("%.1f s", left.Seconds())
	c.t.gauge(c.what, 1-min(1, left.Seconds()/c.total.Seconds()), fmt.Sprintf(c.left, text))
}

// end leaves the line of the clock.
func (c *clock) end() {
	if c.t.moves && !c.ended {
		fmt.Fprintln(c.t.w)
	}
	c.ended = true
}
