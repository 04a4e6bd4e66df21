package plugin

import (
	"sync"
	"time"

	"azure-kms-plugin/keyvault"
)

// kube-apiserver asks for one corrupted object some 80 times a second, and
// would fill a disk with the same line.
const (
	failureWindow = time.Minute
	failureBurst  = 5
)

// A failure is a kind of log line. Both parts are from closed lists.
type failure struct {
	op     Op
	reason keyvault.Reason
}

// failures decides which failed calls are logged: for each kind the first few
// in a minute. The count of the others is in the first line of a later minute.
type failures struct {
	mu   sync.Mutex
	seen map[failure]*window
}

type window struct {
	began    time.Time
	logged   int
	silenced int
}

// admit reports whether to log a failure now, and how many of its kind were
// silenced since the last line.
func (f *failures) admit(kind failure, now time.Time) (silenced int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil {
		f.seen = map[failure]*window{}
	}
	w := f.seen[kind]
	if w == nil {
		w = &window{began: now}
		f.seen[kind] = w
	}
	if now.Sub(w.began) >= failureWindow {
		silenced = w.silenced
		*w = window{began: now}
	}
	if w.logged == failureBurst {
		w.silenced++
		return 0, false
	}
	w.logged++
	return silenced, true
}
