package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"
)

func main() {
	if done, err := serveChild(os.Args[1:]); done {
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(3)
		}
		return
	}
	// The measuring side's collections would show as the plugin's slowest calls.
	debug.SetGCPercent(800)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// serveChild plays one of the parts that the bench starts as processes of
// their own, and reports whether it was asked to.
func serveChild(args []string) (asked bool, err error) {
	switch {
	case len(args) == 1 && args[0] == emulatorArg:
		return true, serveEmulator(os.Stdin, os.Stdout)
	case len(args) == 1 && args[0] == bareArg:
		return true, serveBare(os.Stdin)
	case len(args) == 1 && args[0] == httpLoadArg:
		return true, loadHTTP(os.Stdin, os.Stdout)
	}
	return false, nil
}

// options are the sizes of a run.
type options struct {
	starts     int           // starts to take the median of
	idle       time.Duration // how long calls of an idle plugin are counted
	pairs      int           // paired rounds of one direct and one plugin call
	rounds     int           // rounds of the throughput comparison
	single     int           // calls for a line of the table of latencies, one at a time
	many       int           // and 64 at a time; at most a burst
	deadWindow time.Duration // how long Status is asked while the vault is dead, per kind
	httpWindow time.Duration // how long the HTTP ports are loaded
	floor      string        // the plainest server
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	plugin := fs.String("plugin", "bin/azure-kms-plugin", "the `binary` to hold against the figures")
	peer := fs.String("peer", "", "another `binary` to measure beside it")
	out := fs.String("out", "", "a `folder` to write bench.md and bench.json to")
	floor := fs.String("floor", "bin/bench-floor", "the `binary` of the plainest server")
	idle := fs.Duration("idle", 0, "how long calls of an idle plugin are counted; 0: 15m, or 65s with -quick")
	httpWindow := fs.Duration("http", 0, "how long the HTTP ports are loaded; 0: 1m, or 5s with -quick")
	quick := fs.Bool("quick", false, "a tenth of the rounds and a short idle window: a look that judges nothing")
	if err := fs.Parse(args); err != nil {
		return 64
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "bench: %q: only flags are taken\n", fs.Arg(0))
		return 64
	}
	o := options{starts: 7, idle: 15 * time.Minute, pairs: 1000, rounds: 6, single: 150, many: burst, deadWindow: 12 * time.Second, httpWindow: time.Minute}
	if *quick {
		o = options{starts: 3, idle: 65 * time.Second, pairs: 100, rounds: 2, single: 20, many: 128, deadWindow: 3 * time.Second, httpWindow: 5 * time.Second}
	}
	o.floor = *floor
	if *idle > 0 {
		o.idle = *idle
	}
	if *httpWindow > 0 {
		o.httpWindow = *httpWindow
	}
	targets := []target{{name: "azure-kms-plugin", bin: *plugin, vault: "bench-ours"}}
	if *peer != "" {
		targets = append(targets, target{name: filepath.Base(*peer) + " (peer)", bin: *peer, vault: "bench-peer"})
	}

	r := report{Machine: describeMachine(), Quick: *quick}
	err := r.measure(ctx, o, targets, stderr)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			fmt.Fprintf(stderr, "bench: %v\n", err)
		}
		return 3
	}
	r.text(stdout)
	if *out != "" {
		if err := r.write(*out); err != nil {
			fmt.Fprintf(stderr, "bench: writing the report: %v\n", err)
			return 3
		}
		fmt.Fprintf(stdout, "\nAlso in %s and bench.json.\n", filepath.Join(*out, "bench.md"))
	}
	if missed := r.missed(); len(missed) > 0 {
		return 1
	}
	return 0
}
