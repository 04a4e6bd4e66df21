package keyvault

import (
	"regexp"
	"strings"
	"sync"
)

// pattern returns an expression that is compiled when it is first used: most
// are for failures, and a start has better things to do.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// isHex reports whether s is n hexadecimal digits of either case.
func isHex(s string, n int) bool {
	return len(s) == n && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'f') && (r < 'A' || r > 'F')
	})
}

// isLabel reports whether s is letters, digits and dashes, min to max of them.
func isLabel(s string, min, max int) bool {
	return len(s) >= min && len(s) <= max && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-'
	})
}

// isHost reports whether s is a DNS name of two labels or more.
func isHost(s string) bool {
	labels := strings.Split(s, ".")
	for _, l := range labels {
		if !isLabel(l, 1, 63) || strings.HasPrefix(l, "-") || strings.HasSuffix(l, "-") {
			return false
		}
	}
	return len(labels) >= 2 && len(s) <= 253
}
