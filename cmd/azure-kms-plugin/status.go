package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"azure-kms-plugin/health/console"
	"azure-kms-plugin/health/status"
)

// statusFlags are those of the status command.
var statusFlags = []flagSpec{
	{"output", "table|json", "table", "how to show it; -o is short for it"},
	{"timeout", "duration", "3s", "how long each replica may take; all are asked at once"},
}

// asArgument are flags of serve that say where a document is.
var asArgument = map[string]string{
	"healthz-port": "give it as an argument, as in azure-kms-plugin status 127.0.0.1:8787",
	"status-file":  "give it as an argument, as in azure-kms-plugin status /run/azure-kms/status.json",
}

// defaultSource is where a plugin of this machine says how it is.
const defaultSource = "http://127.0.0.1:8787/status"

// runStatus shows the status documents of one or many replicas.
func runStatus(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	r, rest := commandLine(statusFlags, args)
	if r.help() {
		printStatusUsage(stdout)
		return exitOK
	}
	output, timeout := r.choice("output", "table", "json"), r.duration("timeout")
	if len(rest) == 0 {
		rest = []string{defaultSource}
	}
	var sources []source
	for _, arg := range rest {
		s, fault := parseSource(arg)
		if fault != "" {
			r.faults = append(r.faults, fault)
		}
		sources = append(sources, s)
	}
	if len(r.faults) > 0 {
		complain(stderr, append(r.faults, "see azure-kms-plugin status --help"))
		return exitUsage
	}
	list := status.NewList(time.Now(), readAll(ctx, sources, timeout))
	if output == "json" {
		if err := console.WriteJSON(stdout, list); err != nil {
			complain(stderr, []string{err.Error()})
			return status.ExitUnknown
		}
		return list.Summary.ExitStatus
	}
	console.WriteList(stdout, list)
	return list.Summary.ExitStatus
}

// maxAsked bounds the replicas that are asked at a time.
const maxAsked = 64

// readAll reads every source, at once as far as that goes.
func readAll(ctx context.Context, sources []source, timeout time.Duration) []status.Item {
	items := make([]status.Item, len(sources))
	slots := make(chan struct{}, maxAsked)
	var wg sync.WaitGroup
	for i, s := range sources {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			items[i] = s.read(ctx, timeout)
		})
	}
	wg.Wait()
	return items
}

// commandLine reads the flags of a command that takes arguments, which may stand
// between them. -o is --output.
func commandLine(flags []flagSpec, args []string) (r *commandReader, rest []string) {
	r = &commandReader{reader: reader{values: make(flagValues)}, flags: flags}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	for _, f := range flags {
		fs.Var(collector{f.name, f.arg == "", r.values}, f.name, f.usage)
	}
	fs.Var(collector{"output", false, r.values}, "o", "")
	for _, name := range []string{"h", "help"} {
		fs.Var(collector{"help", true, r.values}, name, "")
	}
	for len(args) > 0 {
		err := fs.Parse(args)
		left := fs.Args()
		switch {
		case err == nil && len(left) == 0:
		case err == nil:
			rest, left = append(rest, left[0]), left[1:]
		case len(left) == 0 && strings.HasPrefix(err.Error(), "flag needs an argument"):
			r.fault(flagName(args[len(args)-1]), "needs a value")
		case strings.HasPrefix(err.Error(), "bad flag syntax"):
			r.faults = append(r.faults, fmt.Sprintf("%q is not a flag: write --name=value", cut(left[0])))
			left = left[1:]
		default:
			name := flagName(args[len(args)-len(left)-1])
			r.fault(name, "%s", cmp.Or(asArgument[name], "there is no such flag"))
		}
		args = left
	}
	return r, rest
}

// A commandReader takes the values of a command's own flags.
type commandReader struct {
	reader
	flags []flagSpec
}

func (r *commandReader) help() bool { return r.given("help") && r.toggle("help") }

// choice and duration know the command's defaults where the reader knows those of serve.
func (r *commandReader) choice(flag string, allowed ...string) string {
	r.setDefault(flag)
	return r.oneOf(flag, allowed...)
}

func (r *commandReader) duration(flag string) time.Duration {
	r.setDefault(flag)
	return r.reader.duration(flag)
}

func (r *commandReader) setDefault(flag string) {
	for _, f := range r.flags {
		if f.name == flag && !r.given(flag) {
			r.values[flag] = []string{f.def}
		}
	}
}

func printStatusUsage(w io.Writer) {
	fmt.Fprint(w, `azure-kms-plugin status shows how plugins are, and who is on which key.

Usage:
  azure-kms-plugin status [flags] [URL | HOST:PORT | FILE ...]

Each argument leads to the status document of one replica: a URL such as
http://node-1:8787/status, the host and the --healthz-port alone, or the file that
a plugin writes with --status-file. Without one it is that of this machine,
`+defaultSource+`.

`)
	printFlags(w, statusFlags)
	fmt.Fprint(w, `
Exit status: 0 usable; 1 degraded, or replicas do not write under one key;
2 a key is lost or refused; 3 cannot tell: a replica could not be read, is out of
date or is only starting; 64 wrong use. Of several, 2 wins over 3, and 3 over 1.
`)
}
