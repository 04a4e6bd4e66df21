package doctor_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/health/doctor"
	"azure-kms-plugin/keyvault"
)

// A plugin answers Status as a test wants it.
type plugin struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	answer *kmsapi.StatusResponse
	err    error
}

func (p plugin) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	return p.answer, p.err
}

func listen(t *testing.T, path string) net.Listener {
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

func serve(t *testing.T, path string, p *plugin) {
	srv := grpc.NewServer()
	if p != nil {
		kmsapi.RegisterKeyManagementServiceServer(srv, p)
	}
	ln := listen(t, path)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
}

// What is found at the socket never keeps the key from being usable.
func TestWalk_Socket(t *testing.T) {
	ok := func(id string) *plugin {
		return &plugin{answer: &kmsapi.StatusResponse{Version: "v2", Healthz: "ok", KeyId: id}}
	}
	for name, tc := range map[string]struct {
		at    func(t *testing.T, path string)
		state doctor.State
		says  string
	}{
		"nothing":      {func(*testing.T, string) {}, doctor.Note, "that is right if no plugin runs"},
		"the same key": {func(t *testing.T, path string) { serve(t, path, ok(key.KeyID())) }, doctor.OK, "under the key ID of this version"},
		"another key":  {func(t *testing.T, path string) { serve(t, path, ok("abc")) }, doctor.Warn, "under key ID abc, which is not that of this version"},
		"Status fails": {func(t *testing.T, path string) {
			serve(t, path, &plugin{err: status.Error(codes.Unavailable, "KeyDisabled: so")})
		}, doctor.Warn, "its Status fails: KeyDisabled: so"},
		"a health text": {func(t *testing.T, path string) {
			serve(t, path, &plugin{answer: &kmsapi.StatusResponse{Healthz: "ill"}})
		}, doctor.Warn, "its Status says: ill"},
		"another service":  {func(t *testing.T, path string) { serve(t, path, nil) }, doctor.Warn, "is no KMS v2 plugin"},
		"silence":          {func(t *testing.T, path string) { listen(t, path) }, doctor.Warn, "Status is not answered within 3s"},
		"a file":           {func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, nil, 0o600)) }, doctor.Warn, "is not a socket"},
		"a directory":      {func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o700)) }, doctor.Warn, "is not a socket"},
		"a left one":       {func(t *testing.T, path string) { leave(t, path) }, doctor.Warn, "which a process left behind"},
		"a file for a way": {nil, doctor.Warn, "is not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _, _ := well(t)
			if tc.at == nil {
				require.NoError(t, os.WriteFile(cfg.Socket, nil, 0o600))
				cfg.Socket += "/k.sock"
			} else {
				tc.at(t, cfg.Socket)
			}
			ctx := t.Context()
			if name == "silence" { // no need to wait for kube-apiserver's time-out
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
			}
			r := doctor.Walk(ctx, cfg)
			s := find(t, r, doctor.Socket)
			require.Equal(t, tc.state, s.State, s.Text)
			require.Contains(t, s.Text, tc.says)
			require.Equal(t, tc.state == doctor.Warn, r.ExitStatus == 1)
			require.Equal(t, tc.state == doctor.Warn, s.Remedy != "")
		})
	}
}

func leave(t *testing.T, path string) {
	ln := listen(t, path)
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
}

// While the newest version is followed, a plugin is right to write under another one
// until the delay of the newest has passed.
func TestWalk_NewestNotYetAdopted(t *testing.T) {
	for age, want := range map[time.Duration]doctor.State{time.Minute: doctor.Note, 10 * time.Minute: doctor.Warn} {
		cfg, v, _ := well(t)
		cfg.Key.Version = ""
		v.attributes.Created = date.Add(-age)
		serve(t, cfg.Socket, &plugin{answer: &kmsapi.StatusResponse{Healthz: "ok", KeyId: "older"}})
		s := find(t, doctor.Walk(t.Context(), cfg), doctor.Socket)
		require.Equal(t, want, s.State, age)
	}
	cfg, v, _ := well(t)
	cfg.Key.Version, v.attributes.Created, v.attributes.Updated = "", date.Add(-time.Hour), date.Add(-time.Minute)
	serve(t, cfg.Socket, &plugin{answer: &kmsapi.StatusResponse{Healthz: "ok", KeyId: "older"}})
	s := find(t, doctor.Walk(t.Context(), cfg), doctor.Socket)
	require.Equal(t, doctor.Note, s.State, "it was changed lately")
	require.Contains(t, s.Text, "writes from 2026-12-01T12:02:00Z on")
}

// A walk that ends where a plugin that serves does not may have another environment.
func TestWalk_ThePluginIsWell(t *testing.T) {
	const hint = "does it have another environment (HTTPS_PROXY, SSL_CERT_FILE) or other flags?"
	serving := &plugin{answer: &kmsapi.StatusResponse{Healthz: "ok", KeyId: "abc"}}
	ill := &plugin{err: status.Error(codes.Unavailable, "VaultNotFound: so")}
	for _, tc := range []struct {
		reason keyvault.Reason
		served *plugin
		says   string
		hint   bool
	}{
		{keyvault.VaultNotFound, serving, "the name does not exist.", true},
		{keyvault.VaultNotFound, ill, "the name does not exist.", false},
		{keyvault.AccessDenied, serving, "a new permission takes minutes to work.", true},
		{keyvault.NetworkDenied, ill, "somebody says no. That stays so until it is mended.", false},
		{keyvault.Unreachable, serving, "whether the key can be used is not known.", true},
		{keyvault.KeyDisabled, serving, "the key cannot be used as it is.", false},
	} {
		cfg, v, _ := well(t)
		v.encrypt = refusal(tc.reason)
		serve(t, cfg.Socket, tc.served)
		r := doctor.Walk(t.Context(), cfg)
		require.Contains(t, r.Text, tc.says)
		require.Equal(t, tc.hint, strings.Contains(r.Text, hint), r.Text)
		require.Equal(t, tc.reason == keyvault.AccessDenied, strings.Contains(r.Text, "minutes"))
	}
	cfg, _, _ := well(t)
	serve(t, cfg.Socket, serving)
	require.NotContains(t, doctor.Walk(t.Context(), cfg).Text, hint)
}
