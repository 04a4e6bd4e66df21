package plugin_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

func TestPanic(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	for _, value := range []any{errors.New("PLAINCANARY"), "PLAINCANARY", []byte("PLAINCANARY")} {
		r.keyring.do(func(context.Context) error { panic(value) })
		_, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: []byte("PLAINCANARY"), Uid: "u-1"})
		require.Equal(t, codes.Internal, status.Code(err))
		require.NotContains(t, err.Error(), "CANARY")
	}
	r.keyring.fail(nil)
	_, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(t, err)
	require.Contains(t, r.log.String(), "panic in a call")
	require.Contains(t, r.log.String(), "rig_test.go", "the log must show where")
	require.NotContains(t, r.log.String(), "CANARY")
	require.Equal(t, codes.Internal, r.observed()[0].Code)
}

func TestPanic_InReadiness(t *testing.T) {
	r := serve(t, func(c *plugin.Config) { c.Readiness = ready(func(context.Context) error { panic("x") }) })
	_, err := r.dial(t).Status(in3s(t), &kmsapi.StatusRequest{})
	require.Equal(t, codes.Internal, status.Code(err))
}

// L02: whatever happens, nothing of a payload gets into the log or an error.
func TestNoSecrets(t *testing.T) {
	const canary = "PLAINCANARY-0123456789abcdefghij"
	r := serve(t)
	c := r.dial(t)
	var texts []string
	call := func() {
		e, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: []byte(canary), Uid: "u-1"})
		if err != nil {
			texts = append(texts, err.Error())
			return
		}
		texts = append(texts, hex.EncodeToString(e.Ciphertext[:16]), string(e.Ciphertext[:16]))
		_, err = c.Decrypt(in3s(t), decryptOf(e))
		require.NoError(t, err)
	}
	call()
	ciphertext := texts
	texts = nil
	r.keyring.fail(errors.New(canary))
	call()
	r.keyring.do(func(context.Context) error { panic(canary) })
	call()
	_, err := c.Decrypt(in3s(t), &kmsapi.DecryptRequest{Ciphertext: []byte(canary), KeyId: canary, Uid: canary + "\n"})
	texts = append(texts, err.Error())

	all := r.log.String() + strings.Join(texts, "\n")
	for _, secret := range append(ciphertext, canary, hex.EncodeToString([]byte(canary)), base64.RawURLEncoding.EncodeToString([]byte(canary))) {
		require.NotContains(t, all, secret)
	}
	require.Contains(t, all, `"uid":"u-1"`)
	require.Contains(t, all, `"uid":"(malformed)"`)
	require.Contains(t, all, `"error_type":"*errors.errorString"`)
}

// H05: one corrupted object is asked for some 80 times a second. It is logged a
// few times, then counted.
func TestFailuresAreNotAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		c, stop := r.serveInMemory(t)
		defer stop()
		bad := &kmsapi.DecryptRequest{Ciphertext: make([]byte, 3), Uid: "u", KeyId: ref(version1).KeyID(), Annotations: map[string][]byte{
			"version.azure.akv.io": []byte("1"), "algorithm.azure.akv.io": []byte("RSA-OAEP-256"),
		}}
		for range 300 {
			_, err := c.Decrypt(t.Context(), bad)
			require.Equal(t, codes.InvalidArgument, status.Code(err))
		}
		r.keyring.fail(&keyvault.Error{Reason: keyvault.Throttled, Text: "wait"})
		_, err := c.Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: seed()})
		require.Error(t, err)
		require.Equal(t, 5, strings.Count(r.log.String(), "BadRequest"+`","code"`))
		require.Equal(t, 1, strings.Count(r.log.String(), "Throttled"+`","code"`), "another reason is not silenced")
		time.Sleep(time.Minute)
		_, err = c.Decrypt(t.Context(), bad)
		require.Error(t, err)
		require.Contains(t, r.log.String(), `"not_logged_before":295`)
		require.Len(t, r.observed(), 302, "metrics count them all")
	})
}

// One line for a failure, and none above debug for a call that is well.
func TestLog(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	c.status(t)
	_, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed(), Uid: "good"})
	require.NoError(t, err)
	r.keyring.fail(&keyvault.Error{Reason: keyvault.Unreachable, Text: "tcp: refused"})
	_, err = c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed(), Uid: "bad"})
	require.Error(t, err)
	var about []map[string]any
	for line := range strings.Lines(r.log.String()) {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		if m["op"] != nil && m["level"] != "debug" {
			about = append(about, m)
		}
	}
	require.Len(t, about, 1)
	require.Equal(t, "encrypt", about[0]["op"])
	require.Equal(t, "bad", about[0]["uid"])
	require.Equal(t, "Unreachable", about[0]["reason"])
	require.Equal(t, "Unavailable", about[0]["code"])
	require.Equal(t, "Unreachable: tcp: refused", about[0]["error"])
}

func TestObserve(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	c.status(t)
	e, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(t, err)
	_, err = c.Decrypt(in3s(t), decryptOf(e))
	require.NoError(t, err)
	r.keyring.fail(&keyvault.Error{Key: ref(version1), Reason: keyvault.KeyDisabled, Text: "t"})
	_, err = c.Decrypt(in3s(t), decryptOf(e))
	require.Error(t, err)
	got := r.observed()
	id := ref(version1).KeyID()
	for i := range got {
		require.Positive(t, got[i].Took)
		got[i].Took = 0
	}
	require.Equal(t, []plugin.Request{
		{Op: plugin.OpStatus, KeyID: id, Reason: keyvault.Success},
		{Op: plugin.OpEncrypt, KeyID: id, Key: ref(version1), Reason: keyvault.Success},
		{Op: plugin.OpDecrypt, KeyID: id, Key: ref(version1), Reason: keyvault.Success},
		{Op: plugin.OpDecrypt, KeyID: id, Key: ref(version1), Reason: keyvault.KeyDisabled, Code: codes.FailedPrecondition},
	}, got)
}

// G03: failing calls leave nothing behind, and the first good one works.
func TestManyFailures(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	e, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(t, err)
	base := runtime.NumGoroutine()
	r.keyring.fail(&keyvault.Error{Op: keyvault.OpDecrypt, Reason: keyvault.Unreachable, Cause: keyvault.CauseServer, Status: 500, Text: "the vault answered 500"})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 40 {
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				if _, err := c.Decrypt(ctx, decryptOf(e)); status.Code(err) != codes.Unavailable {
					t.Errorf("got %v", err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	r.keyring.fail(nil)
	_, err = c.Decrypt(in3s(t), decryptOf(e))
	require.NoError(t, err)
	require.EqualValues(t, 2000+2, r.keyring.calls.Load())
	backTo(t, base+10)
}

// serveInMemory runs the rig without a socket, so that it may be in a bubble.
func (r *rig) serveInMemory(t *testing.T) (c *client, stop func()) {
	l := bufconn.Listen(1 << 20)
	r.memory = l
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		r.done <- r.ServeOn(ctx, l)
		close(r.done)
	}()
	c = dialWith(t, func(ctx context.Context) (net.Conn, error) { return l.DialContext(ctx) })
	return c, func() {
		c.conn.Close()
		cancel()
		<-r.done
	}
}

func TestConnections(t *testing.T) {
	r := serve(t)
	poller := r.dial(t)
	poller.status(t)
	require.Eventually(t, func() bool { return len(r.Connections()) == 1 }, 5*time.Second, time.Millisecond)
	got := r.Connections()[0]
	require.False(t, got.APIServer)
	require.Equal(t, ref(version1).KeyID(), got.KeyID)
	require.False(t, got.Since.IsZero())
	if runtime.GOOS == "linux" {
		require.Equal(t, plugin.Peer{PID: int32(os.Getpid()), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Known: true}, got.Peer)
	}
	server := r.dial(t)
	_, err := server.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(t, err)
	require.Len(t, r.Connections(), 2)
	require.True(t, r.Connections()[1].APIServer)
	if runtime.GOOS == "linux" {
		require.True(t, r.Connections()[0].APIServer, "a connection of the same process")
		third := r.dial(t)
		third.status(t)
		require.True(t, r.Connections()[2].APIServer, "a later connection of the same process")
		third.conn.Close()
	}
	server.conn.Close()
	require.Eventually(t, func() bool { return len(r.Connections()) == 1 }, 5*time.Second, time.Millisecond)
}
