package plugin_test

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

// Whether the key can be used is not the question: a restart cannot mend a vault.
func TestCheckSocket_WhateverTheKey(t *testing.T) {
	var why atomic.Pointer[error]
	waited := false
	r := serve(t, func(c *plugin.Config) {
		c.Readiness = ready(func(ctx context.Context) error {
			if ctx.Err() == nil {
				waited = true
			}
			if err := why.Load(); err != nil {
				return *err
			}
			return nil
		})
	})
	require.NoError(t, r.CheckSocket())
	for _, err := range []error{
		&keyvault.Error{Reason: keyvault.KeyDisabled, Text: "scripted"},
		&keyvault.Error{Reason: keyvault.Unreachable, Text: "scripted"},
		context.DeadlineExceeded,
	} {
		why.Store(&err)
		r.ForgetCheck()
		require.NoError(t, r.CheckSocket(), err)
	}
	require.False(t, waited, "it waits for no probe")
	require.Empty(t, r.observed(), "it is no request")
	require.Empty(t, r.Connections(), "and nobody's connection")
	require.NotContains(t, r.log.String(), "call ")
}

// A Status that hangs, for whatever reason, is what /livez is there for.
func TestCheckSocket_Wedged(t *testing.T) {
	release := make(chan struct{})
	r := serve(t, func(c *plugin.Config) {
		c.Readiness = ready(func(context.Context) error { <-release; return nil })
	})
	defer close(release)
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			require.ErrorContains(t, r.CheckSocket(), "has not answered within 5s")
		})
	}
	wait.Wait()
}

// Nobody accepts.
func TestCheckSocket_NotServing(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.Listen())
	require.ErrorContains(t, r.CheckSocket(), "has not answered within 5s")
	r.Stop()
}

// One that answers "ok" in our place is not us. The path still leads to our inode here, as a
// bind mount or a proxy would have it.
func TestCheckSocket_Impostor(t *testing.T) {
	path := socketPath(t)
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	srv := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(srv, impostor{})
	go srv.Serve(l)
	defer srv.Stop()
	require.ErrorContains(t, plugin.AskSelf(path), "answered by another process")
	require.NoError(t, os.Remove(path))
}

type impostor struct {
	kmsapi.UnimplementedKeyManagementServiceServer
}

func (impostor) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	return &kmsapi.StatusResponse{Version: "v2", Healthz: "ok", KeyId: "1"}, nil
}

// However many ask, there is one call, and one in a second.
func TestCheckSocket_Shared(t *testing.T) {
	var calls atomic.Int64
	r := serve(t, func(c *plugin.Config) {
		c.Readiness = ready(func(context.Context) error { calls.Add(1); return nil })
	})
	var wait sync.WaitGroup
	for range 200 {
		wait.Go(func() { require.NoError(t, r.CheckSocket()) })
	}
	wait.Wait()
	require.Less(t, calls.Load(), int64(20))
}

func BenchmarkCheckSocket(b *testing.B) {
	r := serve(b)
	for b.Loop() {
		r.ForgetCheck()
		require.NoError(b, r.CheckSocket())
	}
}
