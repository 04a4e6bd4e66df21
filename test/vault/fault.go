package vault

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Fault makes matching calls go wrong. Its first fields choose the calls,
// the others say what happens to them. All matching faults apply in the order
// in which they were added, up to the first that answers, hangs or resets: a
// Delay for everything and a Status for one operation go together.
type Fault struct {
	// Op is the operation. Empty means every operation of Host, or of every
	// vault where Host is empty too: faults of the token endpoints name one of
	// their operations or hosts. A request without a token is OpChallenge.
	Op Op `json:"op,omitempty"`
	// Host is a host name. A name without a dot means that vault or Managed HSM.
	Host string `json:"host,omitempty"`
	// Key and Version are as in the request line; a Version never matches a
	// call that names none.
	Key     string `json:"key,omitempty"`
	Version string `json:"version,omitempty"`
	// Above lets calls pass while no more than this many are being served.
	Above int `json:"above,omitempty"`
	// Skip lets the first calls pass, Times ends the fault after so many;
	// 0 means until it is removed.
	Skip  int `json:"skip,omitempty"`
	Times int `json:"times,omitempty"`

	// Delay passes before anything is answered.
	Delay time.Duration `json:"delay,omitempty"`

	// Status answers with an error (or anything else). The body is made of
	// Code, InnerCode and Message, for which the service's own stand in, or it
	// is Body as it is, or nothing (NoBody).
	Status      int    `json:"status,omitempty"`
	Code        string `json:"code,omitempty"`
	InnerCode   string `json:"innerCode,omitempty"`
	Message     string `json:"message,omitempty"`
	Body        string `json:"body,omitempty"`
	NoBody      bool   `json:"noBody,omitempty"`
	ContentType string `json:"contentType,omitempty"`
	// RetryAfter is sent as Retry-After, or as retry-after-ms unless it is in
	// whole seconds.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
	// Redirect is the Location of a 307, or of Status.
	Redirect string `json:"redirect,omitempty"`

	// Header is set on the answer, whoever makes it; an empty value removes a header.
	Header map[string]string `json:"header,omitempty"`
	// SlowBody sends the body byte by byte with this pause, headers at once.
	SlowBody time.Duration `json:"slowBody,omitempty"`
	// BodySize fills the body up with spaces. Cut ends the connection after
	// half of the body.
	BodySize int64 `json:"bodySize,omitempty"`
	Cut      bool  `json:"cut,omitempty"`

	// Hang never answers; it ends when the client leaves.
	Hang bool `json:"hang,omitempty"`
	// Reset answers with a TCP reset.
	Reset bool `json:"reset,omitempty"`

	// The rest concerns connections, so that only Host may choose, and it
	// lasts until removed. Open connections of the host end when they fall
	// idle (TLS, DNS), at once (Refuse), or stand still (Drop). A client may
	// still try one that has just ended, and see no more than that.

	// TLS fails the handshake.
	TLS TLSFault `json:"tls,omitempty"`
	// Refuse refuses connections. Without Host it closes the listeners of the
	// service and of the proxy, so that the kernel refuses. For one host the
	// transport and the proxy (502) say it, and the listener resets whoever
	// asks for that name.
	Refuse bool `json:"refuse,omitempty"`
	// Drop swallows everything. Without Host the listeners no longer answer a
	// SYN. For one host the transport dials an address that does not, and the
	// proxy never answers its CONNECT.
	Drop bool `json:"drop,omitempty"`
	// DNS fails to resolve the name: in the transport by a net.DNSError, at
	// the proxy by 502 (504 for DNSTimeout).
	DNS DNSFault `json:"dns,omitempty"`
}

// A TLSFault is a way to fail a handshake. The list is closed.
type TLSFault string

const (
	TLSUntrusted TLSFault = "untrusted"  // a certificate of an unknown authority
	TLSWrongName TLSFault = "wrong-name" // a certificate for another host
	TLSExpired   TLSFault = "expired"    // a certificate of yesterday
	TLSOld       TLSFault = "old"        // the server knows TLS 1.1 at best
	TLSAlert     TLSFault = "alert"      // the server breaks the handshake off
)

// A DNSFault is a way to not resolve a name. The list is closed.
type DNSFault string

const (
	DNSNotFound DNSFault = "not-found" // NXDOMAIN
	DNSTimeout  DNSFault = "timeout"   // the resolver does not answer; Delay long at the proxy, 5 s by default
	DNSServFail DNSFault = "servfail"  // the resolver cannot tell
)

// A FaultID names a fault that was added.
type FaultID int

// ofConnection reports whether f acts on connections, not on calls.
func (f Fault) ofConnection() bool { return f.TLS != "" || f.Refuse || f.Drop || f.DNS != "" }

// answers reports whether f ends a call by itself.
func (f Fault) answers() bool {
	return f.Hang || f.Reset || f.Status != 0 || f.Body != "" || f.NoBody || f.Redirect != "" || f.Code != "" || f.InnerCode != ""
}

// Validate reports everything that makes f meaningless.
func (f Fault) Validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if f.Op != "" && !f.Op.valid() {
		bad("Op: %q is not an operation", f.Op)
	}
	if strings.Contains(f.Host, ".") && !mapped(strings.ToLower(f.Host)) {
		bad("Host: %q is not a name of the service", f.Host)
	}
	if f.Above < 0 || f.Skip < 0 || f.Times < 0 || f.BodySize < 0 {
		bad("Above, Skip, Times and BodySize are counts, not negative")
	}
	if f.Delay < 0 || f.RetryAfter < 0 || f.SlowBody < 0 {
		bad("Delay, RetryAfter and SlowBody are not negative")
	}
	if f.Status != 0 && (f.Status < 200 || f.Status > 599) {
		bad("Status: %d is not between 200 and 599", f.Status)
	}
	if f.TLS != "" && !slices.Contains([]TLSFault{TLSUntrusted, TLSWrongName, TLSExpired, TLSOld, TLSAlert}, f.TLS) {
		bad("TLS: %q is none of untrusted, wrong-name, expired, old, alert", f.TLS)
	}
	if f.DNS != "" && !slices.Contains([]DNSFault{DNSNotFound, DNSTimeout, DNSServFail}, f.DNS) {
		bad("DNS: %q is none of not-found, timeout, servfail", f.DNS)
	}
	for name := range f.Header {
		if name == "" || strings.ContainsAny(name, " :\r\n\t") {
			bad("Header: %q is not the name of a header", name)
		}
	}
	answer := f
	answer.Hang, answer.Reset = false, false
	if one := count(f.Hang, f.Reset, answer.answers()); one > 1 {
		bad("Hang, Reset and an answer exclude each other")
	}
	if f.Body != "" && (f.NoBody || f.Code != "" || f.InnerCode != "" || f.Message != "") {
		bad("Body excludes NoBody, Code, InnerCode and Message")
	}
	if f.ofConnection() {
		if count(f.TLS != "", f.Refuse, f.Drop, f.DNS != "") > 1 {
			bad("TLS, Refuse, Drop and DNS exclude each other")
		}
		if f.answers() || f.Op != "" || f.Key != "" || f.Version != "" || f.Times != 0 || f.Skip != 0 || f.Above != 0 {
			bad("a fault of connections is chosen by Host alone and lasts until it is removed")
		}
	} else if !f.answers() && f.Delay == 0 && f.SlowBody == 0 && f.BodySize == 0 && !f.Cut && f.RetryAfter == 0 && len(f.Header) == 0 {
		bad("the fault does nothing")
	}
	return errors.Join(faults...)
}

func count(bs ...bool) int {
	n := 0
	for _, b := range bs {
		if b {
			n++
		}
	}
	return n
}

// apply sets what f sets on an answer.
func (f Fault) apply(h http.Header) {
	if f.RetryAfter > 0 {
		if f.RetryAfter%time.Second == 0 {
			h.Set("Retry-After", fmt.Sprint(int(f.RetryAfter/time.Second)))
		} else {
			h.Set("Retry-After-Ms", fmt.Sprint(f.RetryAfter.Milliseconds()))
		}
	}
	for name, value := range f.Header {
		if value == "" {
			h.Del(name)
		} else {
			h.Set(name, value)
		}
	}
}

// faults is the list of faults in force. It is safe for concurrent use.
type faults struct {
	mu   sync.Mutex
	next FaultID
	list []*activeFault // guarded by mu
}

type activeFault struct {
	Fault
	id      FaultID
	matched int // guarded by faults.mu
}

func (fs *faults) add(f Fault) FaultID {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.next++
	fs.list = append(fs.list, &activeFault{Fault: f, id: fs.next})
	return fs.next
}

// remove takes out the fault with the ID, or all for 0, and reports whether
// there was one.
func (fs *faults) remove(id FaultID) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	before := len(fs.list)
	fs.list = slices.DeleteFunc(fs.list, func(f *activeFault) bool { return id == 0 || f.id == id })
	return len(fs.list) < before
}

// all returns the faults in force, by ID.
func (fs *faults) all() map[FaultID]Fault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	m := make(map[FaultID]Fault, len(fs.list))
	for _, f := range fs.list {
		m[f.id] = f.Fault
	}
	return m
}

// take returns the faults that apply to c, and uses them up.
func (fs *faults) take(c *call, inFlight int) []Fault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var hit []Fault
	used := false
	for _, f := range fs.list {
		if f.ofConnection() || !f.matches(c) || f.Above > 0 && inFlight <= f.Above {
			continue
		}
		f.matched++
		if f.matched <= f.Skip || f.Times > 0 && f.matched > f.Skip+f.Times {
			continue
		}
		used = used || f.Times > 0 && f.matched == f.Skip+f.Times
		hit = append(hit, f.Fault)
		if f.answers() {
			break
		}
	}
	if used {
		fs.list = slices.DeleteFunc(fs.list, func(f *activeFault) bool { return f.Times > 0 && f.matched >= f.Skip+f.Times })
	}
	return hit
}

func (f Fault) matches(c *call) bool {
	switch {
	case f.Op != "" && f.Op != c.Op,
		f.Op == "" && f.Host == "" && c.Op.ofToken(),
		f.Host != "" && f.Host != c.Host,
		f.Key != "" && !strings.EqualFold(f.Key, c.Key),
		f.Version != "" && !strings.EqualFold(f.Version, c.Version):
		return false
	}
	return true
}
