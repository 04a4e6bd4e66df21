package page

import (
	"fmt"
	"strings"
	"time"
)

// A Tone is how good something is. Each has its word in the text beside it, its sign,
// and its line.
type Tone int

// The tones.
const (
	Unknown Tone = iota
	Good
	Attention
	Bad
)

// sign is what stands before a word, in characters that every font has.
func (t Tone) sign() string {
	return [...]string{"?", "+", "!", "X"}[t]
}

// mark opens an element of a tone.
func (t Tone) mark() tag {
	return [...]tag{"unknown", "good", "warn", "bad"}[t]
}

// A Frame is what every page has.
type Frame struct {
	// Title is what the browser's tab says: the state first.
	Title string
	// Heading says what the page is about.
	Heading string
	// Made is when the page was made. Times in it are told from there.
	Made time.Time
}

// A Page is made from top to bottom.
type Page struct {
	b    strings.Builder
	made time.Time
}

// New begins a page.
func New(f Frame) *Page {
	p := &Page{made: f.Made}
	p.tag(`<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">` +
		`<meta http-equiv="refresh" content="5"><link rel="icon" href="data:,"><style>` + style + `</style>`)
	p.put("<title>", f.Title, "</title></head><body>")
	p.put(`<div class="old" role="alert"><p>`, "This page is old. It was made at "+stamp(f.Made)+
		" and has not been able to refresh itself since: it shows what was, not what is.", "</p></div>")
	p.put("<header><h1>", f.Heading, "</h1></header><main>")
	return p
}

// Bytes ends the page.
func (p *Page) Bytes() []byte {
	p.tag("</main><footer>")
	p.put("<p>", "Made at "+stamp(p.made)+", and anew every 5 seconds.", "</p>")
	p.tag("</footer></body></html>\n")
	return []byte(p.b.String())
}

// Banner is one word for all, and what it means.
func (p *Page) Banner(t Tone, word string, sentences ...string) {
	p.tag(`<div class="banner ` + t.mark() + `"><p class="word">`)
	p.sign(t)
	p.put("", word, "</p>")
	for _, s := range sentences {
		p.put("<p>", s, "</p>")
	}
	p.tag("</div>")
}

// Section begins a part of the page.
func (p *Page) Section(title string) { p.put("<h2>", title, "</h2>") }

// Text is a paragraph.
func (p *Page) Text(s string) { p.put("<p>", s, "</p>") }

// Note is something that somebody has to read.
func (p *Page) Note(t Tone, head string, paragraphs ...string) {
	p.tag(`<div class="note ` + t.mark() + `"><div>`)
	p.sign(t)
	p.put("<strong>", head, "</strong></div>")
	for _, s := range paragraphs {
		p.put("<p>", s, "</p>")
	}
	p.tag("</div>")
}

// A Fact is a name and what it is. Those without a value are left out.
type Fact struct{ Name, Value string }

// Facts is a list of them.
func (p *Page) Facts(facts ...Fact) {
	p.tag(`<table role="table" class="facts"><tbody role="rowgroup">`)
	for _, f := range facts {
		if f.Value != "" {
			p.put(`<tr role="row"><th role="rowheader" scope="row">`, f.Name, `</th><td role="cell">`)
			p.put("", f.Value, "</td></tr>")
		}
	}
	p.tag("</tbody></table>")
}

// A Cell is a place in a table: lines of text, the first of which may have a tone.
type Cell struct {
	Lines []string
	Tone  Tone
	Toned bool
}

// Lines is a cell of those lines that are not empty.
func Lines(lines ...string) Cell {
	var c Cell
	for _, l := range lines {
		if l != "" {
			c.Lines = append(c.Lines, l)
		}
	}
	return c
}

// Toned is a cell whose first line has a tone.
func Toned(t Tone, lines ...string) Cell {
	c := Lines(lines...)
	c.Tone, c.Toned = t, true
	return c
}

// Table is a table whose first column names the rows. On a narrow screen each row is
// a list, so the roles are said: a browser would forget that it is a table.
func (p *Page) Table(head []string, rows [][]Cell) {
	p.tag(`<table role="table"><thead role="rowgroup"><tr role="row">`)
	for _, h := range head {
		p.put(`<th role="columnheader" scope="col">`, h, "</th>")
	}
	p.tag(`</tr></thead><tbody role="rowgroup">`)
	for _, row := range rows {
		p.tag(`<tr role="row">`)
		for i, c := range row {
			if i == 0 {
				p.tag(`<th role="rowheader" scope="row">`)
				p.cell(c)
				p.tag("</th>")
				continue
			}
			p.put(`<td role="cell" data-head="`, head[i], `">`)
			p.cell(c)
			p.tag("</td>")
		}
		p.tag("</tr>")
	}
	p.tag("</tbody></table>")
}

func (p *Page) cell(c Cell) {
	for i, line := range c.Lines {
		if i > 0 {
			p.put(`<div class="more">`, line, "</div>")
			continue
		}
		if !c.Toned {
			p.put("<div>", line, "</div>")
			continue
		}
		p.tag(`<div class="` + c.Tone.mark() + `">`)
		p.sign(c.Tone)
		p.put("", line, "</div>")
	}
}

// sign is for the eye: whoever is read to has the word.
func (p *Page) sign(t Tone) { p.put(`<span class="sign" aria-hidden="true">`, t.sign(), "</span>") }

// stamp is a moment, to the second.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// When is a moment and how far it is from when the page was made; empty for none.
func (p *Page) When(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	d := t.Sub(p.made).Round(time.Second)
	switch {
	case d < 0:
		return stamp(*t) + " (" + span(-d) + " ago)"
	case d > 0:
		return stamp(*t) + " (in " + span(d) + ")"
	}
	return stamp(*t) + " (now)"
}

// span is a duration in the one or two units that matter.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 2*day:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d days", d/day)
}
