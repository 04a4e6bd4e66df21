package status

import (
	"fmt"
	"slices"
	"strings"
)

// sentences say who is on which key, who lags, and of what nothing is known.
func sentences(s *Summary, all, fresh []replica, newest ages, ahead int) (text []string) {
	switch {
	case len(s.Writers) == 0:
	case len(s.Writers) == 1:
		text = append(text, agreement(s, len(fresh)))
	case !sameKey(s.Writers):
		text = append(text, "These replicas are of different keys: "+listed(s.Writers, func(w Writer) string { return keyed(w) })+".")
	default:
		text = append(text, lag(s.Writers, newest))
	}
	if idle := slices.DeleteFunc(slices.Clone(fresh), func(r replica) bool { return r.doc.KeyID != "" }); len(idle) > 0 {
		text = append(text, fmt.Sprintf("%s %s no version to write with.", joined(names(idle)), verb(len(idle), "has", "have")))
	}
	if barred := slices.DeleteFunc(slices.Clone(fresh), func(r replica) bool { return r.doc.KeyID == "" || r.writes() }); len(barred) > 0 {
		text = append(text, fmt.Sprintf("%s cannot write now: %s fails.", joined(names(barred)), verb(len(barred), "its Status", "their Status")))
	}
	for _, r := range all {
		if len(r.sources) > 1 {
			text = append(text, fmt.Sprintf("%s lead to one replica, %s: it is counted once.", joined(r.sources), r.name))
		}
	}
	if unknown := s.Stale + s.Unreadable; unknown > 0 {
		var why []string
		if s.Unreadable > 0 {
			why = append(why, fmt.Sprintf("%d could not be read", s.Unreadable))
		}
		if old := s.Stale - ahead; old > 0 {
			why = append(why, fmt.Sprintf("%d %s out of date", old, verb(old, "is", "are")))
		}
		if ahead > 0 {
			why = append(why, fmt.Sprintf("%d %s from the future", ahead, verb(ahead, "is", "are")))
		}
		text = append(text, fmt.Sprintf("Nothing is known now of %d of %d: %s.", unknown, s.Replicas+s.Unreadable, joined(why)))
	}
	return text
}

// agreement is said when all that are known write under one version.
func agreement(s *Summary, fresh int) string {
	w := s.Writers[0]
	n := len(w.Nodes)
	switch {
	case n == 1 && fresh == 1 && s.Stale+s.Unreadable == 0:
		return w.Nodes[0] + " writes under " + keyed(w) + "."
	case n == fresh && n == 2 && s.Stale+s.Unreadable == 0:
		return "Both replicas write under " + keyed(w) + "."
	case n == fresh && s.Stale+s.Unreadable == 0:
		return fmt.Sprintf("All %d replicas write under %s.", n, keyed(w))
	}
	return fmt.Sprintf("%s %s under %s.", joined(w.Nodes), verb(n, "writes", "write"), keyed(w))
}

// lag says who writes under an older version than others. Which one is older is
// known from the vault, or not at all.
func lag(all []Writer, newest ages) string {
	first := all[0]
	known := true
	for _, w := range all[1:] {
		known = known && newest.compare(w.KeyID, first.KeyID) < 0
	}
	if !known {
		return "The replicas do not write under one version: " + listed(all, versioned) + "."
	}
	var late []string
	for _, w := range all[1:] {
		late = append(late, fmt.Sprintf("%s still %s under %s", joined(w.Nodes), verb(len(w.Nodes), "writes", "write"), versioned(w)))
	}
	return fmt.Sprintf("%s; %s %s under the newer %s of %s.", strings.Join(late, "; "),
		joined(first.Nodes), verb(len(first.Nodes), "writes", "write"), versioned(first), first.Key)
}

// listed is "a, b: X; c: Y".
func listed(all []Writer, what func(Writer) string) string {
	var parts []string
	for _, w := range all {
		parts = append(parts, joined(w.Nodes)+": "+what(w))
	}
	return strings.Join(parts, "; ")
}

func keyed(w Writer) string { return versioned(w) + " of " + w.Key }

func versioned(w Writer) string {
	if w.Version == "" {
		return "key ID " + w.KeyID
	}
	return "version " + w.Version
}

func names(all []replica) (out []string) {
	for _, r := range all {
		out = append(out, r.name)
	}
	return out
}

// joined is "a, b and c".
func joined(all []string) string {
	if n := len(all); n > 1 {
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	}
	return strings.Join(all, "")
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
