package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// commands are what the program can do; the first is done without a name.
var commands = []string{"serve", "status", "doctor", "version"}

// run is the whole program but for the exit. It ends when ctx does or when
// stop delivers; a second delivery ends it at once.
func run(ctx context.Context, stop <-chan os.Signal, args []string, stdout, stderr io.Writer) int {
	command, named := commands[0], false
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args, named = args[0], args[1:], true
	}
	if command == "help" {
		printUsage(stdout)
		return exitOK
	}
	if !slices.Contains(commands, command) {
		faults := []string{fmt.Sprintf("%q is not a command: use one of %s", cut(command), strings.Join(commands, ", ")), seeHelp}
		lastWords(defaultOf("termination-log"), complain(stderr, faults))
		return exitUsage
	}
	switch command {
	case "status", "doctor":
		ctx, cancel := interruptible(ctx, stop)
		defer cancel()
		if command == "status" {
			return runStatus(ctx, args, stdout, stderr)
		}
		if slices.ContainsFunc(stray(args, doctorFlags...), meansStatus) && !asksForHelp(args) {
			complain(stderr, []string{"doctor takes no argument; did you mean status?", "see azure-kms-plugin doctor --help"})
			return exitUsage
		}
		return runDoctor(ctx, args, stdout, stderr)
	}
	o, faults := parse(args)
	switch {
	case o.help:
		printUsage(stdout)
		return exitOK
	case o.version:
		fmt.Fprintln(stdout, versionLine(build()))
		return exitOK
	case command == "version":
		if len(args) > 0 {
			complain(stderr, []string{"version takes no arguments", seeHelp})
			return exitUsage
		}
		fmt.Fprintln(stdout, versionLine(build()))
		return exitOK
	}
	if late := lateCommand(args); late != "" && !named {
		lastWords(o.terminationLog, complain(stderr, []string{"the command comes first: azure-kms-plugin " + late + " [flags]"}))
		return exitUsage
	}
	return serve(ctx, stop, o, faults, stderr)
}

// interruptible is a context that the first signal ends.
func interruptible(ctx context.Context, stop <-chan os.Signal) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// seeHelp ends the faults of a command line.
const seeHelp = "see azure-kms-plugin --help"

// complain writes faults for a person, one a line, and returns what it has written.
func complain(w io.Writer, faults []string) string {
	var b strings.Builder
	for _, fault := range faults {
		for line := range strings.Lines(fault) {
			fmt.Fprintf(&b, "%s%s\n", wordsOfFault, strings.TrimRight(line, "\n"))
		}
	}
	fmt.Fprint(w, b.String())
	return b.String()
}
