package page

import (
	"html"
	"strings"
	"unicode"
)

// A tag is markup. Only constants are: text never becomes one.
type tag string

// put writes an opening tag, text, and the closing tag.
func (p *Page) put(open tag, text string, end tag) {
	p.b.WriteString(string(open))
	p.text(text)
	p.b.WriteString(string(end))
}

// tag writes markup.
func (p *Page) tag(t tag) { p.b.WriteString(string(t)) }

// text writes text, escaped for between tags and for inside double quotes.
func (p *Page) text(s string) { p.b.WriteString(html.EscapeString(plain(s))) }

// plain replaces what a browser must not show as it is: bytes that are no text,
// control characters, and those that change the direction of what follows, with which
// a text could look like another.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r):
			return unicode.ReplacementChar
		}
		return r // a byte that is no text has become the replacement already
	}, s)
}
