package plugin_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

const (
	version1 = "0123456789abcdef0123456789abcdef"
	version2 = "fedcba9876543210fedcba9876543210"
)

func ref(version string) keyvault.Ref {
	return keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: version}
}

// A keyring holds real keys in memory. It stands in for keyvault's.
type keyring struct {
	mu      sync.Mutex
	current keyvault.Ref
	// unfinished: the switch to current has run into a fault.
	unfinished bool
	keys       map[string]*rsa.PrivateKey // by version
	hints      []string

	calls atomic.Int64
	// hook, if set, is called first and may block, fail or panic.
	hook atomic.Pointer[func(ctx context.Context) error]
	// block replaces what Encrypt answers.
	block []byte
}

func newKeyring(t testing.TB) *keyring {
	key := readKey(t, "testkey.pem")
	return &keyring{
		current: ref(version1),
		keys:    map[string]*rsa.PrivateKey{version1: key, version2: key},
	}
}

func readKey(t testing.TB, name string) *rsa.PrivateKey {
	b, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	block, _ := pem.Decode(b)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	return key.(*rsa.PrivateKey)
}

func (k *keyring) do(f func(ctx context.Context) error) { k.hook.Store(&f) }
func (k *keyring) fail(err error)                       { k.do(func(context.Context) error { return err }) }

func (k *keyring) rotate(version string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current = ref(version)
}

func (k *keyring) enter(ctx context.Context) error {
	k.calls.Add(1)
	if f := k.hook.Load(); f != nil {
		return (*f)(ctx)
	}
	return nil
}

func (k *keyring) KeyID(held string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.current.Version == "":
		return ""
	case held != "" && k.unfinished:
		return held
	}
	return k.current.KeyID()
}

func (k *keyring) setUnfinished(v bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unfinished = v
}

// find returns the version whose key ID is id.
func (k *keyring) find(op keyvault.Op, id string) (keyvault.Ref, *rsa.PrivateKey, error) {
	for version, key := range k.keys {
		if ref(version).KeyID() == id {
			return ref(version), key, nil
		}
	}
	return keyvault.Ref{}, nil, &keyvault.Error{Op: op, Reason: keyvault.UnknownKey, Text: "no configured key has this ID"}
}

func (k *keyring) Encrypt(ctx context.Context, keyID string, plaintext []byte) ([]byte, keyvault.Ref, error) {
	if err := k.enter(ctx); err != nil {
		return nil, keyvault.Ref{}, err
	}
	at, key, err := k.find(keyvault.OpEncrypt, keyID)
	if err != nil {
		return nil, at, err
	}
	if k.block != nil {
		return k.block, at, nil
	}
	b, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, &key.PublicKey, plaintext, nil)
	return b, at, err
}

func (k *keyring) Decrypt(ctx context.Context, keyID, hint string, block []byte) ([]byte, keyvault.Ref, error) {
	k.mu.Lock()
	k.hints = append(k.hints, hint)
	k.mu.Unlock()
	if err := k.enter(ctx); err != nil {
		return nil, keyvault.Ref{}, err
	}
	at, key, err := k.find(keyvault.OpDecrypt, keyID)
	if err != nil {
		return nil, at, err
	}
	b, err := rsa.DecryptOAEP(sha256.New(), nil, key, block, nil)
	if err != nil {
		return nil, at, &keyvault.Error{Op: keyvault.OpDecrypt, Key: at, Reason: keyvault.BadCiphertext, Text: "the vault cannot open this ciphertext"}
	}
	return b, at, nil
}

// ready is a Readiness.
type ready func(ctx context.Context) error

func (r ready) Ready(ctx context.Context) error { return r(ctx) }

func always(context.Context) error { return nil }

// A rig is a server and all that it reported.
type rig struct {
	*plugin.Server
	keyring *keyring
	path    string
	log     *buffer
	done    chan error        // Run's result
	memory  *bufconn.Listener // of serveInMemory

	mu       sync.Mutex
	requests []plugin.Request
	cancel   context.CancelFunc
}

// newRig makes a server on a socket of its own; edit may change its Config.
func newRig(t testing.TB, edit ...func(*plugin.Config)) *rig {
	r := &rig{keyring: newKeyring(t), log: &buffer{}, done: make(chan error, 1), path: socketPath(t)}
	cfg := plugin.Config{
		Socket:    plugin.SocketConfig{Address: "unix://" + r.path},
		Keyring:   r.keyring,
		Readiness: ready(always),
		Observe: func(q plugin.Request) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.requests = append(r.requests, q)
		},
		Logger: zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), r.log, zap.DebugLevel)),
	}
	for _, f := range edit {
		f(&cfg)
	}
	var err error
	r.Server, err = plugin.New(cfg)
	require.NoError(t, err)
	return r
}

// serve makes a rig and runs it until the test ends.
func serve(t testing.TB, edit ...func(*plugin.Config)) *rig {
	r := newRig(t, edit...)
	require.NoError(t, r.Listen())
	r.run()
	t.Cleanup(func() {
		r.cancel()
		select {
		case <-r.done:
		case <-time.After(20 * time.Second):
			t.Error("Run does not return")
		}
	})
	return r
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		r.done <- r.Run(ctx)
		close(r.done)
	}()
}

func (r *rig) observed() []plugin.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]plugin.Request(nil), r.requests...)
}

// socketPath is short enough for a socket, as t.TempDir may not be.
func socketPath(t testing.TB) string {
	dir, err := os.MkdirTemp("", "kms")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "k.sock")
}

// dial connects as kube-apiserver does.
func (r *rig) dial(t testing.TB) *client { return dialTo(t, "unix", r.Address().Path) }

type client struct {
	kmsapi.KeyManagementServiceClient
	conn *grpc.ClientConn
}

func dialTo(t testing.TB, network, addr string, more ...grpc.DialOption) *client {
	return dialWith(t, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}, more...)
}

func dialWith(t testing.TB, dialer func(context.Context) (net.Conn, error), more ...grpc.DialOption) *client {
	conn, err := grpc.NewClient("passthrough:///localhost", append([]grpc.DialOption{
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialer(ctx) }),
	}, more...)...)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &client{kmsapi.NewKeyManagementServiceClient(conn), conn}
}

func (c *client) status(t testing.TB) *kmsapi.StatusResponse {
	t.Helper()
	resp, err := c.Status(in3s(t), &kmsapi.StatusRequest{})
	require.NoError(t, err)
	return resp
}

// in3s is kube-apiserver's default deadline.
func in3s(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func seed() []byte {
	b := make([]byte, 32)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// decryptOf is the request that reads back an answer.
func decryptOf(e *kmsapi.EncryptResponse) *kmsapi.DecryptRequest {
	return &kmsapi.DecryptRequest{Ciphertext: e.Ciphertext, KeyId: e.KeyId, Annotations: e.Annotations, Uid: "uid-1"}
}

// backTo waits until the number of goroutines is no more than base.
func backTo(t testing.TB, base int) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > base { // Eventually would add one of its own
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			require.Failf(t, "goroutines left", "%d at first, now %s", base, stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
	}
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) Sync() error { return nil }

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
