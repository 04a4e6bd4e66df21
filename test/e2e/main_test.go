package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"azure-kms-plugin/test/stack"
)

// programs are what the tests start, found or built before the first of them.
var programs struct {
	root   string
	plugin string
	kube   stack.Binaries
}

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("skipped: the end-to-end tests are not short")
		return
	}
	// A build is stopped in good order. Once the tests run, a signal ends
	// this process, and the kernel its children.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := find(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	code := m.Run()
	report.print()
	os.Exit(code)
}

// A reporter collects the rows of the table that is printed last.
type reporter struct {
	mu   sync.Mutex
	rows []string
}

var report reporter

func (r *reporter) row(test, what, count, failed, latency string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s", test, what, count, failed, latency))
}

func (r *reporter) took(test, what string, count int, took time.Duration) {
	r.row(test, what, fmt.Sprint(count), "0", "in "+round(took).String())
}

func (r *reporter) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rows) == 0 {
		return
	}
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "test\twhat\tcount\tfailed\ttime")
	for _, row := range r.rows {
		fmt.Fprintln(w, row)
	}
	w.Flush()
	fmt.Println()
}

func round(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Microsecond)
}
