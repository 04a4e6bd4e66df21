package page

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
)

// style is for screens from 320 px on: tables become lists there, and long words break.
// The note .old shows itself when the page has not been replaced in time.
const style = `
:root{color-scheme:light dark;--fg:#1b1b1b;--bg:#fff;--dim:#595959;--line:#c6c6c6;--good:#146c2e;--warn:#7a4b00;--bad:#a40e26;--soft:#f4f4f4}
@media (prefers-color-scheme:dark){:root{--fg:#e8e8e8;--bg:#161616;--dim:#a8a8a8;--line:#4a4a4a;--good:#79d28f;--warn:#f0b44c;--bad:#ff8a92;--soft:#222}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:70rem;font:1rem/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);overflow-wrap:anywhere}
h1{font-size:1rem;font-weight:normal;margin:0 0 .75rem;color:var(--dim)}
h2{font-size:1.15rem;margin:1.75rem 0 .5rem}
p{margin:.4rem 0}
a{color:inherit}
.banner{border:3px solid;border-left-width:.75rem;padding:.6rem .9rem;background:var(--soft)}
.banner .word{font-size:2rem;font-weight:bold;line-height:1.2;margin:0}
.banner p:not(.word){color:var(--fg)}
.note{border:3px solid;border-left-width:.4rem;padding:.3rem .8rem;margin:.6rem 0}
.good{color:var(--good)}
.warn{color:var(--warn)}
.bad{color:var(--bad);font-weight:bold}
.banner p:not(.word){font-weight:normal}
.unknown{color:var(--dim)}
.banner.warn,.note.warn{border-style:dashed}
.banner.bad,.note.bad{border-style:double}
.banner.unknown,.note.unknown{border-style:dotted}
.sign{font-family:monospace;font-weight:bold;margin-right:.45em}
.note p{color:var(--fg);font-weight:normal}
.old{visibility:hidden;max-height:0;overflow:hidden;background:var(--fg);color:var(--bg);padding:0 .9rem;animation:old 0s 20s forwards}
@keyframes old{to{visibility:visible;max-height:20rem;padding:.6rem .9rem;margin-bottom:1rem}}
table{width:100%;border-collapse:collapse}
th,td{text-align:left;vertical-align:top;padding:.4rem 1.2rem .4rem 0;border-bottom:1px solid var(--line);min-width:8.5rem}
th:last-child,td:last-child{padding-right:0}
tbody th{min-width:12rem}
thead th{font-weight:normal;color:var(--dim)}
tbody th{font-weight:bold}
table.facts th{font-weight:normal;color:var(--dim);width:16rem}
.more{margin-top:.15rem;font-weight:normal}
th .more{font-size:.85em;color:var(--dim)}
footer{margin-top:2rem;color:var(--dim);border-top:1px solid var(--line);padding-top:.5rem}
@media (max-width:44rem){
table,tbody,tr,th,td{display:block;width:auto;min-width:0}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tr{border-bottom:1px solid var(--line);padding:.4rem 0}
th,td,tbody th{border:0;padding:.05rem 0;min-width:0}
table.facts th{width:auto}
td[data-head]::before{content:attr(data-head) ": ";color:var(--dim);font-weight:normal}
td[data-head] div:first-child{display:inline}
}
`

// csp lets in this style and an icon that is not there, and nothing else.
var csp = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// Serve answers a request with a page.
func Serve(w http.ResponseWriter, page []byte) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", csp)
	h.Set("Content-Length", strconv.Itoa(len(page)))
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(page) // who has gone needs no answer
}
