// Command demo shows the plugin at its work in one terminal: an emulated Key
// Vault, the real plugin binary, an embedded etcd and kube-apiserver's own
// encryption stack. It writes secrets, shows what lies in etcd, restarts
// everything and reads all back. Then it rotates the key in the vault, shows the
// plugin learn, verify and adopt the new version and the API server follow,
// rewrites all secrets, disables the old version, reads all back once more, and
// leaves the plugin running.
//
// Its exit status is 0 when every act succeeded, 1 when one did not, and 64
// when it was called wrongly.
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
	"syscall"

	"azure-kms-plugin/test/stack"
)

const exitUsage = 64

// options are what the command line says.
type options struct {
	once    bool
	secrets int
	plugin  string // the binary
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "demo:", err)
		return exitUsage
	}
	term := newTerminal(stdout)
	err = play(ctx, opts, term)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		term.say("\ninterrupted; everything is stopped")
	default:
		fmt.Fprintln(stderr, "\ndemo:", err)
	}
	return 1
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.BoolVar(&o.once, "once", false, "end after the last act instead of leaving the plugin running")
	fs.IntVar(&o.secrets, "secrets", 1000, "how many secrets to write")
	fs.StringVar(&o.plugin, "plugin", "", "the plugin's `binary` (default: $"+stack.PluginVar+", else the one that make build makes)")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "usage: make demo [ARGS=\"flags\"]")
			fs.SetOutput(stderr)
			fs.PrintDefaults()
			return o, err
		}
		return o, fmt.Errorf("%w (-h lists the flags)", err)
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("%q: only flags are taken (-h lists them)", fs.Arg(0))
	}
	if o.secrets < 1 || o.secrets > 100_000 {
		return o, fmt.Errorf("-secrets=%d: between 1 and 100000, please", o.secrets)
	}
	var err error
	o.plugin, err = findPlugin(o.plugin)
	return o, err
}

// findPlugin looks where stack does, and first beside this program, which is
// where make puts both.
func findPlugin(path string) (string, error) {
	if path == "" && os.Getenv(stack.PluginVar) == "" {
		if self, err := os.Executable(); err == nil {
			beside := filepath.Join(filepath.Dir(self), "azure-kms-plugin")
			if _, err := os.Stat(beside); err == nil {
				path = beside
			}
		}
	}
	root, err := stack.Root()
	if err != nil {
		root = "." // only the message depends on it then
	}
	return stack.PluginBinary(path, root)
}
