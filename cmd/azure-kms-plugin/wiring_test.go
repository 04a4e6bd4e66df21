package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"
)

// --decrypt-key: data of another vault's key is read, with or without the
// version in the flag or beside the data; without the flag it is not.
func TestServe_DecryptKey(t *testing.T) {
	srv, v, version := newVault(t, vault.Config{})
	other := srv.Vault("kvold")
	otherVersion, err := other.CreateKey("k0", vault.KeyOptions{})
	require.NoError(t, err)
	old := startIn(t, &lab{srv: srv, vault: other, version: otherVersion}, shortDir(t), nil, "--keyvault-name=kvold", "--key-name=k0")
	e := old.encrypt(t, []byte(seed))

	for name, flag := range map[string]string{"": "", "key": other.KeyURL("k0", ""), "version": other.KeyURL("k0", otherVersion)} {
		var args []string
		if flag != "" {
			args = []string{"--decrypt-key=" + flag}
		}
		l := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), nil, args...)
		for _, hint := range []bool{true, false} {
			req := decryptOf(e)
			if !hint {
				delete(req.Annotations, "key-version.azure.akv.io")
			}
			d, err := l.client(t).Decrypt(in3s(t), req)
			if flag == "" {
				require.Equal(t, codes.NotFound, status.Code(err))
				require.ErrorContains(t, err, "--decrypt-key")
				continue
			}
			require.NoError(t, err, "%s, hint %v", name, hint)
			require.Equal(t, seed, string(d.Plaintext))
		}
		l.roundTrip(t) // what is written is under its own key
	}
}

func TestServe_APIVersion(t *testing.T) {
	for args, want := range map[string]string{"": "v2beta1", "--kms-api-version=v2": "v2"} {
		var more []string
		if args != "" {
			more = append(more, args)
		}
		l := startLab(t, nil, nil, more...)
		s, err := l.status(t)
		require.NoError(t, err)
		require.Equal(t, want, s.Version)
	}
}

func TestServe_HealthzPath(t *testing.T) {
	l := startLab(t, nil, nil, "--healthz-path=/deep/health")
	for path, want := range map[string]int{"/deep/health": 200, "/healthz": 404, "/livez": 200, "/readyz": 200} {
		code, body := get(t, l.health+path)
		require.Equal(t, want, code, "%s: %s", path, body)
	}
}

// T02: the program's own transport verifies, and takes TLS 1.2 at least. (The
// tests of keyvault bring a transport of their own.)
func TestServe_TLS(t *testing.T) {
	srv, v, version := newVault(t, vault.Config{})
	for fault, text := range map[vault.TLSFault]string{
		vault.TLSUntrusted: "not trusted", vault.TLSWrongName: "another name", vault.TLSExpired: "expired", vault.TLSOld: "protocol version",
	} {
		id := srv.AddFault(vault.Fault{TLS: fault, Host: "kvlab"})
		l := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), nil)
		_, err := l.status(t)
		require.ErrorContains(t, err, "Unreachable: kvlab.vault.azure.net", fault)
		require.ErrorContains(t, err, text, fault)
		srv.RemoveFault(id)
	}
	require.Zero(t, srv.Calls()["decrypt"]+srv.Calls()["encrypt"], "nothing was said to it")
}

// Workload identity, as its webhook puts it into the environment.
func TestServe_WorkloadIdentity(t *testing.T) {
	srv, v, version := newVault(t, vault.Config{})
	require.NoError(t, srv.AddPrincipal(vault.Principal{ClientID: "wi-app", Assertions: []string{"e30.e30.J1"}}))
	require.NoError(t, v.Allow("wi-app", vault.PermEncrypt, vault.PermDecrypt))
	dir := shortDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "azure.json"), []byte(`{"useWorkloadIdentityExtension":true}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("e30.e30.J1\n"), 0o600))
	p := prepare(t, dir, append(srv.Env(), "AZURE_CLIENT_ID=wi-app", "AZURE_TENANT_ID="+srv.TenantID, "AZURE_FEDERATED_TOKEN_FILE="+filepath.Join(dir, "token")),
		"--key-version="+version).start(t).serving(t)
	(&lab{process: p, srv: srv, vault: v, version: version}).roundTrip(t)
}

// denier is a vault whose key's attributes may not be had.
type denier struct{}

func (denier) Get(_ context.Context, ref keyvault.Ref) (keyvault.Attributes, error) {
	return keyvault.Attributes{}, &keyvault.Error{Op: keyvault.OpGet, Key: ref, Reason: keyvault.AccessDenied}
}

func (denier) Versions(context.Context, keyvault.Ref) ([]keyvault.Attributes, error) { return nil, nil }

func (denier) Encrypt(_ context.Context, _ keyvault.Ref, b []byte) ([]byte, error) { return b, nil }

func (denier) Decrypt(_ context.Context, _ keyvault.Ref, b []byte) ([]byte, error) { return b, nil }

// The attributes are asked for half a minute after the start, too late for a test of the
// program as a whole.
func TestProgram_AttributesDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: "0123456789abcdef0123456789abcdef"}
		tracker := health.NewTracker(health.Config{Key: key})
		p := &program{key: key, tracker: tracker, uses: health.NewUses(nil), prober: health.NewProber(health.ProberConfig{Vault: denier{}, Tracker: tracker})}
		var err error
		p.keyring, err = keyvault.NewPinned(keyvault.KeyringConfig{Vault: denier{}, Write: key})
		require.NoError(t, err)
		require.True(t, p.keyMetrics().MetadataAccess, "until it is denied")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go p.prober.Run(ctx)
		time.Sleep(time.Minute)
		require.False(t, p.keyMetrics().MetadataAccess)
	})
}
