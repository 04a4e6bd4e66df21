package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/vault"
	"azure-kms-plugin/test/vault/freeport"
)

// callTimeout is kube-apiserver's default for a KMS provider.
const callTimeout = 3 * time.Second

// A target is a plugin to measure.
type target struct {
	name    string
	bin     string
	vault   string // its own in the emulator, so that its calls can be told apart
	version string // of its key; empty for one that follows the newest
}

func (t target) host() string { return t.vault + ".vault.azure.net" }

// calls are those that reach its vault.
func (t target) calls() vault.Match { return vault.Match{Host: t.host()} }

// A process is a running plugin and a client of it, as kube-apiserver is one:
// a single gRPC connection on the unix socket.
type process struct {
	target
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	conn   *grpc.ClientConn
	kms    kmsapi.KeyManagementServiceClient
	health *http.Client
	probe  string // URL of kubelet's probe

	metrics string // URL of the metrics

	socketAfter time.Duration // from exec until the socket accepted
	readyAfter  time.Duration // from exec until the first good Status
}

// start runs the plugin with HyperShift's arguments, which every plugin knows, and
// waits for a good Status.
func start(ctx context.Context, t target, e *emulator, dir string) (*process, error) {
	healthz, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	metrics, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, t.vault+".sock")
	logPath := filepath.Join(dir, t.vault+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{
		target: t, exited: make(chan struct{}),
		health: &http.Client{Timeout: 30 * time.Second},
		probe:  fmt.Sprintf("http://127.0.0.1:%d/healthz", healthz), metrics: fmt.Sprintf("http://127.0.0.1:%d/metrics", metrics),
	}
	args := []string{"--keyvault-name=" + t.vault, "--key-name=" + keyName}
	if t.version != "" {
		args = append(args, "--key-version="+t.version)
	}
	p.cmd = exec.Command(t.bin, append(args,
		"--listen-addr=unix://"+socket,
		"--healthz-port="+strconv.Itoa(healthz), "--healthz-path=/healthz",
		"--metrics-addr="+strconv.Itoa(metrics),
		"--config-file-path="+e.AzureJSON, "-v=1")...)
	p.cmd.Env = append(os.Environ(), e.Env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = ownGroup()

	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		close(p.exited)
	}()
	if err := p.await(ctx, socket, began); err != nil {
		p.stop()
		return nil, fmt.Errorf("starting %s: %w\n%s", t.name, err, tail(logPath))
	}
	return p, nil
}

// await polls finely enough for a figure in milliseconds.
func (p *process) await(ctx context.Context, socket string, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			break
		}
		if err := p.pause(ctx, 200*time.Microsecond); err != nil {
			return fmt.Errorf("waiting for the socket: %w", err)
		}
	}
	p.socketAfter = time.Since(began)
	var err error
	p.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return err
	}
	p.kms = kmsapi.NewKeyManagementServiceClient(p.conn)
	for {
		if err = p.status(ctx); err == nil {
			break
		}
		if stop := p.pause(ctx, time.Millisecond); stop != nil {
			return fmt.Errorf("waiting for a good Status: %w (last: %v)", stop, err)
		}
	}
	p.readyAfter = time.Since(began)
	return nil
}

// pause waits for d, or less when waiting longer is of no use.
func (p *process) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-p.exited:
		return errors.New("the process has ended")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop ends the process, gently first.
func (p *process) stop() {
	if p.conn != nil {
		p.conn.Close()
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-p.exited:
	case <-time.After(15 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// status asks once, as kube-apiserver does, and fails unless the answer is ok.
func (p *process) status(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := p.kms.Status(ctx, &kmsapi.StatusRequest{})
	if err != nil {
		return err
	}
	if s.Healthz != "ok" {
		return fmt.Errorf("healthz is %q", s.Healthz)
	}
	return nil
}

func (p *process) encrypt(ctx context.Context, seed []byte) (*kmsapi.EncryptResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*callTimeout)
	defer cancel()
	return p.kms.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: seed, Uid: "bench"})
}

func (p *process) decrypt(ctx context.Context, sealed *kmsapi.EncryptResponse) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*callTimeout)
	defer cancel()
	r, err := p.kms.Decrypt(ctx, &kmsapi.DecryptRequest{
		Ciphertext: sealed.Ciphertext, KeyId: sealed.KeyId, Annotations: sealed.Annotations, Uid: "bench",
	})
	return r.GetPlaintext(), err
}

// healthz is kubelet's probe. Its verdict is not looked at: what it costs is.
func (p *process) healthz(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.probe, nil)
	if err != nil {
		return err
	}
	resp, err := p.health.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// memory reads a field of /proc/PID/status, such as VmRSS, in MiB.
func (p *process) memory(field string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			return float64(kb) / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc has no %s", field)
}

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// tail returns the end of a log, for an error.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(data[max(0, len(data)-2000):])
}
