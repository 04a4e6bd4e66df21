package vault

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// A reply is an answer before it is sent, so that faults can change it.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func jsonReply(status int, v any) *reply {
	if v == nil {
		return bodyReply(status, "", nil)
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only types of this package get here
	}
	return bodyReply(status, "application/json; charset=utf-8", b)
}

func bodyReply(status int, contentType string, body []byte) *reply {
	r := &reply{status: status, header: http.Header{}, body: body}
	if len(body) > 0 {
		r.header.Set("Content-Type", contentType)
	}
	return r
}

// exchange serves one counted call: it applies the faults in force and sends
// what answer says otherwise. failure gives a fault's error its shape.
func (s *Server) exchange(w http.ResponseWriter, r *http.Request, c *call, answer func() *reply, failure func(Fault) *reply) {
	inFlight := s.count.begin(c)
	status := 0
	defer func() { s.count.end(c, status, r.Context().Err() != nil) }()
	// The whole request is read first: only then does net/http notice a client that leaves.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		status = http.StatusRequestEntityTooLarge
		http.Error(w, "request body too large", status)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))

	hit := s.faults.take(c, inFlight)
	var out *reply
	for _, f := range hit {
		if !s.pause(r.Context(), f.Delay) {
			panic(http.ErrAbortHandler)
		}
		switch {
		case f.Hang:
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		case f.Reset:
			reset(r)
			panic(http.ErrAbortHandler)
		case f.answers():
			out = failure(f)
		}
	}
	if out == nil {
		out = answer()
	}
	for _, f := range hit {
		f.apply(out.header)
	}
	status = out.status
	s.send(w, r, out, hit)
}

// faultReply is what a fault answers, with an error body made by body if it
// names none.
func faultReply(f Fault, body func(Fault) []byte) *reply {
	status := f.Status
	switch {
	case status == 0 && f.Redirect != "":
		status = http.StatusTemporaryRedirect
	case status == 0 && (f.Code != "" || f.InnerCode != ""):
		status = http.StatusForbidden
	case status == 0:
		status = http.StatusOK
	}
	f.Status = status
	contentType := f.ContentType
	if contentType == "" {
		contentType = "application/json; charset=utf-8"
	}
	var b []byte
	switch {
	case f.NoBody:
	case f.Body != "":
		b = []byte(f.Body)
	case f.Redirect != "":
	default:
		b = body(f)
	}
	out := bodyReply(status, contentType, b)
	if f.Redirect != "" {
		out.header.Set("Location", f.Redirect)
	}
	return out
}

// send writes a reply, in the way that the faults want.
func (s *Server) send(w http.ResponseWriter, r *http.Request, out *reply, hit []Fault) {
	var slow time.Duration
	var size int64
	cut := false
	for _, f := range hit {
		slow, size, cut = max(slow, f.SlowBody), max(size, f.BodySize), cut || f.Cut
	}
	h := w.Header()
	// The service's clock is the one that is injected.
	h.Set("Date", s.now().UTC().Format(http.TimeFormat))
	for name, values := range out.header {
		h[name] = values
	}
	size = max(size, int64(len(out.body)))
	h.Set("Content-Length", fmt.Sprint(size))
	w.WriteHeader(out.status)
	if size == 0 {
		return
	}
	flush := http.NewResponseController(w)
	if slow > 0 || cut {
		flush.Flush()
	}
	var from io.Reader = io.MultiReader(bytes.NewReader(out.body), io.LimitReader(spaces{}, size-int64(len(out.body))))
	if cut {
		from = io.LimitReader(from, size/2)
	}
	if slow == 0 {
		io.Copy(w, from) // the client may leave
	} else {
		one := make([]byte, 1)
		for {
			if _, err := io.ReadFull(from, one); err != nil {
				break
			}
			if !s.pause(r.Context(), slow) {
				panic(http.ErrAbortHandler)
			}
			w.Write(one)
			flush.Flush()
		}
	}
	if cut {
		flush.Flush()
		panic(http.ErrAbortHandler)
	}
}

type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// pause waits for d, and reports whether the client is still there.
func (s *Server) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reset ends the connection of a request with a TCP reset.
func reset(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		c.reset()
	}
}

type connKey struct{}
