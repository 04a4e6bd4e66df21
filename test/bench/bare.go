package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"
)

// bareArg makes this program a KMS v2 server that answers Status with a
// constant and passes everything else on by the direct client: what gRPC, a unix
// socket and another process cost on this machine, and so the least that any
// plugin can add.
const bareArg = "-serve-bare"

// bareConfig comes to the bare server as JSON on its standard input.
type bareConfig struct {
	Socket         string
	Access         access
	Vault, Version string
}

type bareServer struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	direct *direct
}

const bareKeyID = "bare"

func (bareServer) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	return &kmsapi.StatusResponse{Version: "v2beta1", Healthz: "ok", KeyId: bareKeyID}, nil
}

func (s bareServer) Encrypt(ctx context.Context, r *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	block, err := s.direct.encrypt(ctx, r.Plaintext)
	return &kmsapi.EncryptResponse{Ciphertext: block, KeyId: bareKeyID}, err
}

func (s bareServer) Decrypt(ctx context.Context, r *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	plaintext, err := s.direct.decrypt(ctx, r.Ciphertext)
	return &kmsapi.DecryptResponse{Plaintext: plaintext}, err
}

// serveBare serves until it is told to end.
func serveBare(in io.Reader) error {
	var c bareConfig
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d, err := newDirect(ctx, c.Access, c.Vault, c.Version)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", c.Socket)
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(srv, bareServer{direct: d})
	context.AfterFunc(ctx, srv.Stop)
	return srv.Serve(l)
}

// startBare starts the bare server as a process that can be measured like a plugin.
func startBare(ctx context.Context, e *emulator, t target, dir string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := bareConfig{Socket: filepath.Join(dir, "bare.sock"), Access: e.access, Vault: t.vault, Version: t.version}
	in, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p := &process{target: t, exited: make(chan struct{})}
	p.cmd = exec.Command(self, bareArg)
	p.cmd.Stdin, p.cmd.Stderr = bytes.NewReader(in), os.Stderr
	p.cmd.SysProcAttr = ownGroup()
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // it said on stderr what it had to say
		close(p.exited)
	}()
	if err := p.await(ctx, c.Socket, began); err != nil {
		p.stop()
		return nil, fmt.Errorf("starting the bare server: %w", err)
	}
	return p, nil
}

// measureBare takes from the bare server what a plugin's figures have to be
// seen against.
func measureBare(ctx context.Context, o options, e *emulator, dir string, log io.Writer) (*figures, error) {
	t := target{name: "bare server", vault: "bench-bare"}
	var err error
	if t.version, err = e.createKey(t.vault); err != nil {
		return nil, err
	}
	p, err := startBare(ctx, e, t, dir)
	if err != nil {
		return nil, err
	}
	return measureCost(ctx, o, e, p, log)
}

// measureCost takes what a floor's calls cost, and stops it.
func measureCost(ctx context.Context, o options, e *emulator, p *process, log io.Writer) (_ *figures, err error) {
	defer p.stop()
	b := &bench{options: o, e: e, process: p, log: log, f: &figures{Name: p.name}}
	if b.direct, err = newDirect(ctx, e.access, p.vault, p.version); err != nil {
		return nil, err
	}
	defer b.direct.close()
	b.say("what it adds to a direct call")
	if err := b.measureAdded(ctx); err != nil {
		return nil, err
	}
	b.say("throughput against a direct client")
	if err := b.measureThroughput(ctx); err != nil {
		return nil, err
	}
	if err := e.only(); err != nil {
		return nil, err
	}
	b.say("Status")
	b.f.StatusFar = b.process.statusFor(ctx, o.deadWindow)
	return b.f, ctx.Err()
}

// statusFor asks for Status again and again, one call at a time as the existing
// plugins were measured, and takes bad answers as they are. Calls with pauses
// between them would measure how long this machine takes to wake up.
func (p *process) statusFor(ctx context.Context, window time.Duration) latency {
	var took sample
	failed := 0
	for end := time.Now().Add(window); time.Now().Before(end) && ctx.Err() == nil; {
		t := time.Now()
		if err := p.status(ctx); err != nil {
			failed++
		}
		took = append(took, time.Since(t))
	}
	l := took.latency()
	l.Failed = failed
	return l
}
