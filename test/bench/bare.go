package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kmsapi "k8s.io/kms/apis/v2"
)

// bareArg makes this program a KMS v2 server that does nothing but answer
// Status with a constant: what gRPC and a unix socket cost on this machine, and
// so the least that any plugin can take.
const bareArg = "-serve-bare"

type bareServer struct {
	kmsapi.UnimplementedKeyManagementServiceServer
}

func (bareServer) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	return &kmsapi.StatusResponse{Version: "v2beta1", Healthz: "ok", KeyId: "bare"}, nil
}

// serveBare serves until it is told to end.
func serveBare(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(srv, bareServer{})
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		srv.Stop()
	}()
	return srv.Serve(l)
}

// measureBare takes the latency of Status from a bare server, in the pattern of
// every other Status figure.
func measureBare(ctx context.Context, dir string, window time.Duration) (latency, error) {
	self, err := os.Executable()
	if err != nil {
		return latency{}, err
	}
	p := &process{target: target{name: "bare server"}, exited: make(chan struct{})}
	socket := filepath.Join(dir, "bare.sock")
	p.cmd = exec.Command(self, bareArg, socket)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = ownGroup()
	if err := p.cmd.Start(); err != nil {
		return latency{}, err
	}
	go func() {
		_ = p.cmd.Wait() // it said on stderr what it had to say
		close(p.exited)
	}()
	defer p.stop()
	p.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return latency{}, err
	}
	p.kms = kmsapi.NewKeyManagementServiceClient(p.conn)
	for p.status(ctx) != nil {
		if err := p.pause(ctx, 10*time.Millisecond); err != nil {
			return latency{}, fmt.Errorf("starting the bare server: %w", err)
		}
	}
	return p.statusFor(ctx, window), nil
}

// statusFor asks for Status in bursts of twenty calls, ten a second, and takes
// bad answers as they are. Single calls with pauses would measure how long this
// machine takes to wake up.
func (p *process) statusFor(ctx context.Context, window time.Duration) latency {
	var took sample
	failed := 0
	for end := time.Now().Add(window); time.Now().Before(end) && ctx.Err() == nil; {
		for range 20 {
			t := time.Now()
			if err := p.status(ctx); err != nil {
				failed++
			}
			took = append(took, time.Since(t))
			if time.Now().After(end) {
				break
			}
		}
		if err := p.pause(ctx, 100*time.Millisecond); err != nil {
			break
		}
	}
	l := took.latency()
	l.Failed = failed
	return l
}
