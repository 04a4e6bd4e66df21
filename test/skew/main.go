// Command skew drives a KMS v2 plugin through the encryption stack of one
// version of k8s.io/apiserver: the one that the chosen modfile names.
//
//	go build -modfile=v0.29.mod -o skew-0.29 .
//	skew-0.29 write -config encryption.yaml -count 20 -from 0.29 >written.jsonl
//	skew-0.29 read  -config encryption.yaml <written.jsonl
//
// Writing and reading are separate runs, so that a reader holds no seed and
// has to ask the plugin for each. It keeps to what 0.29 already offers.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"
)

// A record is one value as etcd would hold it.
type record struct {
	From   string `json:"from"`   // version that wrote it
	Key    string `json:"key"`    // etcd key, authenticated with the value
	Stored []byte `json:"stored"` // with kube-apiserver's prefix
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "skew:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) == 0 || (args[0] != "write" && args[0] != "read") {
		return errors.New("say write or read")
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	config := fs.String("config", "", "EncryptionConfiguration `file`")
	count := fs.Int("count", 20, "values to write")
	from := fs.String("from", "", "name of this version in the records")
	wait := fs.Duration("wait", 20*time.Second, "how long the provider may take to become healthy")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	klog.LogToStderr(false) // its news are in the errors
	klog.SetOutput(io.Discard)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	transformer, err := load(ctx, *config, *wait)
	if err != nil {
		return err
	}
	if args[0] == "write" {
		return write(ctx, transformer, *from, *count, out)
	}
	return read(ctx, transformer, in, out)
}

// load builds the stack as kube-apiserver does at its start and waits until
// its own health check is satisfied with the plugin.
func load(ctx context.Context, file string, wait time.Duration) (value.Transformer, error) {
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, "skew")
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", file, err)
	}
	t := c.Transformers[schema.GroupResource{Resource: "secrets"}]
	if t == nil {
		return nil, fmt.Errorf("%s has no provider for secrets", file)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz", nil)
	if err != nil {
		return nil, err
	}
	for _, check := range c.HealthChecks {
		for {
			err := check.Check(req)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("waiting for health check %s: %w", check.Name(), err)
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	return t, nil
}

func write(ctx context.Context, t value.Transformer, from string, count int, out io.Writer) error {
	enc := json.NewEncoder(out)
	for i := range count {
		r := record{From: from, Key: fmt.Sprintf("/registry/secrets/skew/%s-%d", from, i)}
		stored, err := t.TransformToStorage(ctx, plaintext(r.Key), value.DefaultContext(r.Key))
		if err != nil {
			return fmt.Errorf("encrypting %s: %w", r.Key, err)
		}
		r.Stored = stored
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func read(ctx context.Context, t value.Transformer, in io.Reader, out io.Writer) error {
	counts := map[string]int{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("reading a record: %w", err)
		}
		got, stale, err := t.TransformFromStorage(ctx, r.Stored, value.DefaultContext(r.Key))
		switch {
		case err != nil:
			return fmt.Errorf("decrypting %s: %w", r.Key, err)
		case !bytes.Equal(got, plaintext(r.Key)):
			return fmt.Errorf("decrypting %s: another value came back", r.Key)
		case stale:
			// The key ID is the same for all, so nothing may ask to be rewritten.
			return fmt.Errorf("decrypting %s: reported as stale", r.Key)
		}
		counts[r.From]++
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading the records: %w", err)
	}
	return json.NewEncoder(out).Encode(counts)
}

// plaintext is the value that belongs under key, so that a reader knows what
// to expect without being told.
func plaintext(key string) []byte { return bytes.Repeat([]byte("value of "+key+"; "), 20) }
