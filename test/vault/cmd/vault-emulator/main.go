// Command vault-emulator serves an emulated Azure Key Vault on the loopback
// until it is told to stop. It prints where it is and the environment that
// leads an unmodified program to it.
//
// Exit statuses: 0 stopped by a signal, 1 could not serve, 64 wrong use.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"azure-kms-plugin/test/vault"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const usage = 64 // EX_USAGE

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("vault-emulator", flag.ContinueOnError)
	flags.SetOutput(stderr)
	name := flags.String("vault", "kvlab", "name of the vault")
	hsm := flags.Bool("hsm", false, "make it a Managed HSM")
	key := flags.String("key", "k1", "name of a key to begin with; empty: none")
	bits := flags.Int("bits", 2048, "size of the key: 2048, 3072 or 4096")
	http2 := flags.Bool("http2", false, "offer HTTP/2")
	lifetime := flags.Duration("token-lifetime", time.Hour, "how long a token lasts")
	listen := flags.String("listen", "127.0.0.1:0", "address of the service")
	proxy := flags.String("proxy-listen", "127.0.0.1:0", "address of the proxy")
	admin := flags.String("admin-listen", "127.0.0.1:0", "address of the admin API")
	azureJSON := flags.String("azure-json", "", "directory to write azure.json to; empty: none")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return usage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "vault-emulator: unexpected argument %q\n", flags.Arg(0))
		return usage
	}
	host := strings.ToLower(*name) + ".vault.azure.net"
	if *hsm {
		host = strings.ToLower(*name) + ".managedhsm.azure.net"
	}
	srv, err := vault.Start(vault.Config{HTTP2: *http2, TokenLifetime: *lifetime, Listen: *listen, ProxyListen: *proxy, AdminListen: *admin})
	if err != nil {
		fmt.Fprintf(stderr, "vault-emulator: %v\n", err)
		return 1
	}
	defer srv.Close()
	v, err := srv.VaultAt(host)
	if err != nil {
		fmt.Fprintf(stderr, "vault-emulator: -vault: %v\n", err)
		return usage
	}
	var config string
	fmt.Fprintf(stdout, "vault:   %s\nservice: https://%s\nproxy:   %s\nadmin:   %s\n", v.URL(), srv.Addr(), srv.ProxyURL(), srv.AdminURL())
	if *key != "" {
		version, err := v.CreateKey(*key, vault.KeyOptions{Bits: *bits})
		if err != nil {
			fmt.Fprintf(stderr, "vault-emulator: -key, -bits: %v\n", err)
			return usage
		}
		fmt.Fprintf(stdout, "key:     %s\n", v.KeyURL(*key, version))
	}
	if *azureJSON != "" {
		path, err := srv.AzureJSON(*azureJSON)
		if err != nil {
			fmt.Fprintf(stderr, "vault-emulator: -azure-json: %v\n", err)
			return 1
		}
		config = path
		// The secret in it is good for this emulator only. Another one may have
		// written its own there meanwhile.
		if ours, err := os.ReadFile(path); err == nil {
			defer func() {
				if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, ours) {
					os.Remove(path)
				}
			}()
		}
		fmt.Fprintf(stdout, "config:  %s\n", path)
	}
	if *key != "" && config != "" {
		// In a folder of its own: the key will be another one next time, and the plugin
		// remembers, beside its socket, which versions it had.
		dir, err := os.MkdirTemp("", "kms")
		if err != nil {
			fmt.Fprintf(stderr, "vault-emulator: %v\n", err)
			return 1
		}
		defer os.RemoveAll(dir)
		// Without the version: who turns the key at the admin URL sees it followed.
		fmt.Fprintf(stdout, "plugin:  azure-kms-plugin --key-url=%s --activation-delay=20s --config-file-path=%s --listen-addr=unix://%s/kms.sock\n",
			v.KeyURL(*key, ""), config, dir)
	}
	fmt.Fprintf(stdout, "\nexport ADMIN=%s\nexport %s\n", srv.AdminURL(), strings.Join(srv.Env(), "\nexport "))
	<-ctx.Done()
	return 0
}
