// Command build-image packs binaries of azure-kms-plugin into an OCI archive.
// "make image" runs it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"azure-kms-plugin/test/image"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var c image.Config
	fs := flag.NewFlagSet("build-image", flag.ContinueOnError)
	fs.SetOutput(stderr)
	out := fs.String("out", "", "the `file` to write")
	name := fs.String("name", "azure-kms-plugin:dev", "the `reference` that engines store the image under")
	fs.StringVar(&c.Version, "version", "", "the program's version")
	fs.StringVar(&c.Revision, "revision", "", "the commit")
	fs.Func("binary", "`arch=path` of a static binary (repeatable)", func(s string) error {
		arch, path, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("want arch=path")
		}
		c.Binaries = append(c.Binaries, image.Binary{Arch: arch, Path: path})
		return nil
	})
	fs.Func("entry-arg", "an `argument` in the entry point, before the pod's own (repeatable)", func(s string) error {
		c.EntryArgs = append(c.EntryArgs, s)
		return nil
	})
	fs.Func("created", "the time to write, in `seconds` since 1970", func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		c.Created = time.Unix(n, 0)
		return err
	})
	if err := fs.Parse(args); err != nil {
		return 64
	}
	if *out == "" || fs.NArg() > 0 {
		fmt.Fprintln(stderr, "build-image: -out is required, and nothing may follow the flags")
		return 64
	}
	if err := build(c, *out, *name, stdout); err != nil {
		fmt.Fprintf(stderr, "build-image: %v\n", err)
		return 1
	}
	return 0
}

func build(c image.Config, out, name string, stdout io.Writer) error {
	index, err := image.Build(c)
	if err != nil {
		return err
	}
	if err := image.WriteArchive(out, index, name); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s  %s  %s\n", out, name, digest)
	return nil
}
