package stack

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"azure-kms-plugin/test/vault/freeport"
)

// An EtcdConfig describes an etcd of one member.
type EtcdConfig struct {
	Bin string
	Dir string // holds the data and the log
}

// An Etcd is an etcd process that can be started again over the same data.
type Etcd struct {
	*Process
	URL  string // of the client API
	cfg  EtcdConfig
	peer string
}

// NewEtcd chooses the addresses of an etcd; nothing runs yet.
func NewEtcd(cfg EtcdConfig) (*Etcd, error) {
	client, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	peer, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	return &Etcd{
		cfg:  cfg,
		URL:  fmt.Sprintf("http://127.0.0.1:%d", client),
		peer: fmt.Sprintf("http://127.0.0.1:%d", peer),
	}, nil
}

// Start starts etcd and waits until it serves.
func (e *Etcd) Start(ctx context.Context) error {
	p, err := Start(Command{
		Name: "etcd", Path: e.cfg.Bin, Log: filepath.Join(e.cfg.Dir, "etcd.log"),
		DiesOfTerm: true,
		Args: []string{
			"--data-dir=" + filepath.Join(e.cfg.Dir, "etcd"),
			"--listen-client-urls=" + e.URL, "--advertise-client-urls=" + e.URL,
			"--listen-peer-urls=" + e.peer, "--initial-advertise-peer-urls=" + e.peer,
			"--initial-cluster=default=" + e.peer,
			// A test's data need not outlive a power cut.
			"--unsafe-no-fsync",
			"--log-level=warn",
		},
	})
	if err != nil {
		return err
	}
	e.Process = p
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, fmt.Errorf("not serving after 30 s"))
	defer cancel()
	if err := p.WaitReady(ctx, func(ctx context.Context) error {
		return get(ctx, e.URL+"/health")
	}); err != nil {
		p.Kill()
		return err
	}
	return nil
}

// get is content with a page that answers with status 200.
func get(ctx context.Context, url string) error {
	_, err := fetch(ctx, url)
	return err
}

// fetch returns a page that answers with status 200.
func fetch(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s: %s", url, resp.Status, strings.TrimSpace(string(page[:min(len(page), 300)])))
	}
	return string(page), nil
}
