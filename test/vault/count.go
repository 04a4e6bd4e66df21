package vault

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// A Request is one request that was made, for assertions. It never holds a
// body, a header or a query.
type Request struct {
	Time      time.Time `json:"time"` // by the emulator's clock
	Host      string    `json:"host"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Op        Op        `json:"op"`
	Key       string    `json:"key,omitempty"`
	Version   string    `json:"version,omitempty"`   // as in the path
	Principal string    `json:"principal,omitempty"` // client ID of the token, or who asked for one
	Audience  string    `json:"audience,omitempty"`  // resource that a token was asked for
	Identity  string    `json:"identity,omitempty"`  // how an identity was chosen at the metadata service, e.g. "client_id=..."
	UserAgent string    `json:"userAgent,omitempty"`
	// Status is 0 until it is answered, and stays so if it never is.
	Status int `json:"status"`
	// Cancelled says that the client left before the answer.
	Cancelled bool `json:"cancelled,omitempty"`
}

// A Match chooses calls; an empty field matches all.
type Match struct {
	Op                 Op
	Host, Key, Version string
	Status             int // counts only what was answered with it
}

// call is a request while it is served. Request's fields are guarded by
// counter.mu once it has begun, but for those that choose faults, which are
// not written again.
type call struct{ Request }

type callKind struct {
	op                 Op
	host, key, version string
}

type tally struct {
	begun  int
	status map[int]int
}

// counter counts calls. It is safe for concurrent use.
type counter struct {
	keep int

	mu                  sync.Mutex
	tallies             map[callKind]*tally
	recent              []*call // ring of the last keep, next is the oldest
	next                int
	inFlight, maxFlight int
	connections         map[string]int // by name asked for
	tokens              int
	refused             []string
}

func newCounter(keep int) *counter {
	return &counter{keep: keep, tallies: map[callKind]*tally{}, connections: map[string]int{}}
}

// begin counts c and returns how many calls are being served now.
func (n *counter) begin(c *call) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	kind := callKind{c.Op, c.Host, c.Key, c.Version}
	t := n.tallies[kind]
	if t == nil {
		t = &tally{status: map[int]int{}}
		n.tallies[kind] = t
	}
	t.begun++
	if len(n.recent) < n.keep {
		n.recent = append(n.recent, c)
	} else {
		n.recent[n.next] = c
		n.next = (n.next + 1) % n.keep
	}
	n.inFlight++
	n.maxFlight = max(n.maxFlight, n.inFlight)
	return n.inFlight
}

// end records how c was answered; status 0 means not at all.
func (n *counter) end(c *call, status int, cancelled bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inFlight--
	c.Status, c.Cancelled = status, cancelled
	if t := n.tallies[callKind{c.Op, c.Host, c.Key, c.Version}]; t != nil && status != 0 {
		t.status[status]++
	}
}

// note changes what is recorded of c.
func (n *counter) note(c *call, change func(*Request)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&c.Request)
}

func (n *counter) calls() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := map[string]int{}
	for kind, t := range n.tallies {
		m[string(kind.op)] += t.begun
	}
	return m
}

func (n *counter) count(m Match) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := 0
	for kind, t := range n.tallies {
		if m.Op != "" && m.Op != kind.op || m.Host != "" && m.Host != kind.host ||
			m.Key != "" && m.Key != kind.key || m.Version != "" && m.Version != kind.version {
			continue
		}
		if m.Status != 0 {
			sum += t.status[m.Status]
		} else {
			sum += t.begun
		}
	}
	return sum
}

func (n *counter) requests() []Request {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]Request, 0, len(n.recent))
	for _, c := range slices.Concat(n.recent[n.next:], n.recent[:n.next]) {
		all = append(all, c.Request)
	}
	return all
}

// reset forgets all calls, not the connections.
func (n *counter) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tallies, n.recent, n.next = map[callKind]*tally{}, nil, 0
	n.maxFlight, n.tokens, n.refused = n.inFlight, 0, nil
}

func (n *counter) connected(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.connections[host]++
}

func (n *counter) connectionsByHost() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.connections)
}

func (n *counter) issued() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tokens++
}

func (n *counter) refuse(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.refused) < 1000 {
		n.refused = append(n.refused, host)
	}
}

func (n *counter) refusedHosts() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string{}, n.refused...)
}

func (n *counter) flight() (now, most int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.inFlight, n.maxFlight
}

func (n *counter) tokensIssued() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tokens
}

// Detail is the count of one kind of call.
type Detail struct {
	Op      Op          `json:"op"`
	Host    string      `json:"host"`
	Key     string      `json:"key,omitempty"`
	Version string      `json:"version,omitempty"`
	Begun   int         `json:"begun"`
	Status  map[int]int `json:"status"` // answered with
}

func (n *counter) detail() []Detail {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]Detail, 0, len(n.tallies))
	for k, t := range n.tallies {
		list = append(list, Detail{k.op, k.host, k.key, k.version, t.begun, maps.Clone(t.status)})
	}
	slices.SortFunc(list, func(a, b Detail) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Op, b.Op))
	})
	return list
}
