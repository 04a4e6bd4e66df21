package stack

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"
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
	client, err := FreePort()
	if err != nil {
		return nil, err
	}
	peer, err := FreePort()
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
		return get(ctx, http.DefaultClient, e.URL+"/health", "")
	}); err != nil {
		p.Kill()
		return err
	}
	return nil
}

// get asks for a page and is content with status 200 only.
func get(ctx context.Context, c *http.Client, url, token string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}
