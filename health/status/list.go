package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ListKind is the Kind of a List.
const ListKind = "KMSPluginStatusList"

// A List is what was read of one or many plugins. Make it with [NewList].
type List struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Items are in the order in which they were asked for.
	Items   []Item  `json:"items"`
	Summary Summary `json:"summary"`
}

// An Item is what one URL or file said.
type Item struct {
	Source string `json:"source"`
	// Document is left out if there is none that can be read; Reason, one of
	// Unreads, and Error say why.
	Document *Document `json:"document,omitempty"`
	Reason   Unread    `json:"reason,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// An Unread is a reason why a document could not be read.
type Unread string

// The reasons.
const (
	Refused     Unread = "ConnectionRefused"
	TimedOut    Unread = "TimedOut"
	NoSuchName  Unread = "NoSuchName"
	NoSuchFile  Unread = "NoSuchFile"
	Forbidden   Unread = "PermissionDenied"
	BadStatus   Unread = "HTTPStatus"
	NotDocument Unread = "NotADocument"
	NotRead     Unread = "NotRead" // for another reason
)

// A Summary is what follows from all items together.
type Summary struct {
	ObservedTime time.Time `json:"observedTime"`
	ExitStatus   int       `json:"exitStatus"`
	// Replicas counts the distinct instances that a document tells of, Stale those
	// of them whose newest document says nothing about now; Unreadable counts items.
	Replicas   int `json:"replicas"`
	Stale      int `json:"stale"`
	Unreadable int `json:"unreadable"`
	// Writers has one entry for each key ID under which replicas write now, the
	// newest version first where that is known. Those that are stale or whose Status
	// fails are left out.
	Writers []Writer `json:"writers"`
	// Text says the same in sentences.
	Text []string `json:"text"`
}

// A Writer is a version and the replicas that write under it.
type Writer struct {
	Key     string   `json:"key"` // URL without a version
	Version string   `json:"version"`
	KeyID   string   `json:"keyID"`
	Nodes   []string `json:"nodes"`
}

// NewList sums up what was read at a moment.
func NewList(now time.Time, items []Item) *List {
	l := &List{APIVersion: APIVersion, Kind: ListKind, Items: items}
	l.Summary = Summary{ObservedTime: now.UTC(), Writers: []Writer{}, Text: []string{}}
	s := &l.Summary
	all := replicas(items, now)
	s.Replicas = len(all)
	var fresh []replica
	ahead := 0
	for _, r := range all {
		s.ExitStatus = graver(s.ExitStatus, r.doc.Exit(now))
		if r.doc.Stale(now) {
			s.Stale++
			if r.doc.Ahead(now) {
				ahead++
			}
		} else {
			fresh = append(fresh, r)
		}
	}
	for _, item := range items {
		if item.Document == nil {
			s.Unreadable++
			s.ExitStatus = graver(s.ExitStatus, ExitUnknown)
		}
	}
	newest := newestVersions(fresh)
	s.Writers = append(s.Writers, writers(fresh, newest)...)
	if len(s.Writers) > 1 {
		s.ExitStatus = graver(s.ExitStatus, ExitDegraded)
	}
	s.Text = append(s.Text, sentences(s, all, fresh, newest, ahead)...)
	return l
}

// graver is the exit status of two together. A key that one replica has lost needs
// somebody whatever the others do; what cannot be told may be just as bad.
func graver(a, b int) int {
	order := []int{ExitUsable, ExitDegraded, ExitUnknown, ExitLost}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

// Newest reports whether no other item has a newer document of the same instance as
// the one at an index, which must have one.
func (l *List) Newest(index int) bool {
	return slices.ContainsFunc(replicas(l.Items, l.Summary.ObservedTime), func(r replica) bool { return r.doc == l.Items[index].Document })
}

// A replica is one instance, by its newest document.
type replica struct {
	doc     *Document
	name    string // for people: the node, if that is enough
	sources []string
}

// replicas finds the distinct instances. Two URLs may lead to one; a document
// without an instance ID is one by itself. One from the future, which a wrong clock has
// made, does not hide one that can be dated.
func replicas(items []Item, now time.Time) (all []replica) {
	newer := func(a, b *Document) bool {
		if a.Ahead(now) != b.Ahead(now) {
			return b.Ahead(now)
		}
		return a.ObservedTime.After(b.ObservedTime)
	}
	for _, item := range items {
		if item.Document == nil {
			continue
		}
		id := item.Document.Instance.ID
		i := slices.IndexFunc(all, func(r replica) bool { return id != "" && r.doc.Instance.ID == id })
		if i < 0 {
			all = append(all, replica{doc: item.Document, sources: []string{item.Source}})
			continue
		}
		all[i].sources = append(all[i].sources, item.Source)
		if newer(item.Document, all[i].doc) {
			all[i].doc = item.Document
		}
	}
	nodes := map[string]int{}
	for _, r := range all {
		nodes[r.doc.Instance.Node]++
	}
	for i := range all {
		r := &all[i]
		switch node := r.doc.Instance.Node; {
		case node == "":
			r.name = r.sources[0]
		case nodes[node] > 1:
			r.name = fmt.Sprintf("%s (%s)", node, r.sources[0])
		default:
			r.name = node
		}
	}
	return all
}

// writes reports whether kube-apiserver writes by this replica: under no version it
// cannot, and where Status fails it does not.
func (r replica) writes() bool { return r.doc.KeyID != "" && r.doc.Answer.OK }

// WriteVersion is the version that KeyID stands for; empty if the document does not say.
func (d *Document) WriteVersion() string {
	for _, k := range d.Keys {
		if k.KeyID == d.KeyID && d.KeyID != "" {
			return k.Version
		}
	}
	return ""
}

// writers groups replicas by key ID.
func writers(fresh []replica, newest ages) (all []Writer) {
	for _, r := range fresh {
		if !r.writes() {
			continue
		}
		i := slices.IndexFunc(all, func(w Writer) bool { return w.KeyID == r.doc.KeyID })
		if i < 0 {
			i = len(all)
			all = append(all, Writer{Key: r.doc.Key, Version: r.doc.WriteVersion(), KeyID: r.doc.KeyID})
		}
		all[i].Nodes = append(all[i].Nodes, r.name)
	}
	slices.SortStableFunc(all, func(a, b Writer) int {
		if c := newest.compare(b.KeyID, a.KeyID); c != 0 {
			return c
		}
		return cmp.Compare(len(b.Nodes), len(a.Nodes))
	})
	return all
}

// ages is when versions were created, by key ID.
type ages map[string]time.Time

// newestVersions collects what any replica knows of the age of versions: the one
// that lags may be the one that does not know.
func newestVersions(fresh []replica) ages {
	known := ages{}
	for _, r := range fresh {
		for _, k := range r.doc.Keys {
			if k.CreatedTime != nil {
				known[k.KeyID] = *k.CreatedTime
			}
		}
	}
	return known
}

// compare is 0 if it is not known which of two is older.
func (a ages) compare(x, y string) int {
	tx, okx := a[x]
	ty, oky := a[y]
	if !okx || !oky {
		return 0
	}
	return tx.Compare(ty)
}

// sameKey reports whether all writers are of one key. Hosts and names of Key Vault
// know no case.
func sameKey(all []Writer) bool {
	return !slices.ContainsFunc(all, func(w Writer) bool { return !strings.EqualFold(w.Key, all[0].Key) })
}
