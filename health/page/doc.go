// Package page makes pages for people: plain HTML that refreshes itself, without
// scripts and without anything from elsewhere.
//
// Start with [Status], the page of one plugin, and [Serve], which answers with a page.
// [New] and the methods of [Page] are the frame and the parts that every page here is
// made of: what another page of this project shows looks and reads the same.
//
// # Why not html/template
//
// It calls methods by name, so that the linker keeps every method of every type: the
// program would grow by a quarter. What it is wanted for, that nothing gets into a
// page unescaped, is held here by [Page.put]: tags are constants of their own type,
// and all else is escaped.
//
// # Reading
//
// Words carry the meaning, then signs, then the kind of line around them; colour
// repeats it. Every page says when it was made, and one that has not been made anew
// for a while says so itself: a browser keeps the last one when a server hangs.
//
// # Concurrency, failure, secrets
//
// A Page is for one goroutine. Making one cannot fail. A page shows what it is given:
// documents hold no secret.
package page
