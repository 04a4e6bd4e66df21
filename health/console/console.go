// Package console writes what the commands show, for a terminal of 80 columns without
// colour, or as JSON.
//
// Start with [WriteList], which shows status documents. Whatever comes from outside, be
// it another machine's document or a certificate, goes through [Clean] before it reaches
// a terminal; [Table] and [Wrap] lay out what is clean. Everything here is a function
// without state. A failing writer of text is ignored: there is nobody left to tell.
package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Width is how wide a page is made. Words that are longer than a line, such as
// URLs, go beyond it: whoever copies them needs them whole.
const Width = 80

// Clean makes text from outside fit for a terminal: what does not print, escape
// sequences and changes of the writing direction among it, is shown by its number, and
// what is longer than limit bytes is cut.
func Clean(s string, limit int) string {
	var b strings.Builder
	for i, r := range s {
		if b.Len() > limit {
			b.WriteString("...")
			break
		}
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// WriteJSON writes a value for programs, and for people who look at it.
func WriteJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(CleanJSON(b.Bytes()))
	return err
}

// CleanJSON escapes in a JSON text what does not print. encoding/json leaves the
// control characters beyond ASCII, which some terminals obey.
func CleanJSON(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch {
		case r == '\n' || strconv.IsPrint(r):
			out = append(out, data[i:i+n]...)
		case r > 0xffff:
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		i += n
	}
	return out
}

// Table writes rows of cells in columns, the first row being the heads.
func Table(w io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// Wrap writes text behind head, which begins the first line; the other lines are
// indented as deep as the head is long, or by hang if that is more than 0.
func Wrap(w io.Writer, head, text string, hang int) {
	if hang <= 0 {
		hang = utf8.RuneCountInString(head)
	}
	line, used, fresh := head, utf8.RuneCountInString(head), true
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case fresh:
		case used+1+n <= Width:
			line, used = line+" ", used+1
		default:
			fmt.Fprintln(w, line)
			line, used = strings.Repeat(" ", hang), hang
		}
		line, used, fresh = line+word, used+n, false
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// Age shows a duration in its two largest units.
func Age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}
