package standin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/stack"
	"azure-kms-plugin/test/vault"
)

// A Config describes a stand-in. Every field is needed.
type Config struct {
	Format Format
	Server *vault.Server // where the vault is
	// Vault, Key and Version name the key version that the plugin is pinned
	// to; neither existing plugin can do otherwise.
	Vault, Key, Version string
	Socket              string
}

// A Plugin is a stand-in that can be started again on the same socket.
type Plugin struct {
	cfg    Config
	keyID  string
	client *azkeys.Client
	server *grpc.Server  // nil unless it serves
	done   chan struct{} // closed when server has ended

	statuses, encrypts, decrypts atomic.Int64
}

// New makes the client of the vault; nothing is called and nothing served yet.
func New(cfg Config) (*Plugin, error) {
	options := azcore.ClientOptions{Transport: &http.Client{Transport: cfg.Server.Transport()}}
	credential, err := azidentity.NewClientSecretCredential(cfg.Server.TenantID, cfg.Server.ClientID, cfg.Server.ClientSecret,
		&azidentity.ClientSecretCredentialOptions{ClientOptions: options})
	if err != nil {
		return nil, err
	}
	client, err := azkeys.NewClient(cfg.Server.Vault(cfg.Vault).URL(), credential, &azkeys.ClientOptions{ClientOptions: options})
	if err != nil {
		return nil, err
	}
	return &Plugin{cfg: cfg, client: client, keyID: stack.KeyID(cfg.Vault, cfg.Key, cfg.Version)}, nil
}

// Start binds the socket, clearing its path without a look as both do, and serves.
func (p *Plugin) Start() error {
	if p.server != nil {
		return errors.New("the stand-in serves already")
	}
	if err := os.Remove(p.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("clearing the socket's path: %w", err)
	}
	l, err := net.Listen("unix", p.cfg.Socket)
	if err != nil {
		return err
	}
	server, done := grpc.NewServer(), make(chan struct{})
	kmsapi.RegisterKeyManagementServiceServer(server, service{plugin: p})
	p.server, p.done = server, done
	p.statuses.Store(0)
	p.encrypts.Store(0)
	p.decrypts.Store(0)
	go func() {
		defer close(done)
		_ = server.Serve(l) // it ends when it is stopped
	}()
	return nil
}

// Stop ends what is being served and removes the socket.
func (p *Plugin) Stop() {
	if p.server == nil {
		return
	}
	p.server.GracefulStop()
	<-p.done
	p.server = nil
}

// Requests is how many requests of one operation ("status", "encrypt",
// "decrypt") were answered with success since it started.
func (p *Plugin) Requests(op string) int {
	switch op {
	case "status":
		return int(p.statuses.Load())
	case "encrypt":
		return int(p.encrypts.Load())
	case "decrypt":
		return int(p.decrypts.Load())
	}
	return 0
}

// service is the KMS v2 service of a stand-in.
type service struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	plugin *Plugin
}

// probe is what both plugins encrypt and decrypt for Status.
const probe = "healthcheck"

func (s service) Status(ctx context.Context, _ *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	sealed, err := s.plugin.encrypt(ctx, []byte(probe))
	if err != nil {
		return nil, err
	}
	opened, err := s.plugin.decrypt(ctx, sealed.Ciphertext, sealed.KeyId, sealed.Annotations)
	if err != nil {
		return nil, err
	}
	if string(opened) != probe {
		return nil, errors.New("the probe came back changed")
	}
	s.plugin.statuses.Add(1)
	return &kmsapi.StatusResponse{Version: "v2beta1", Healthz: "ok", KeyId: s.plugin.keyID}, nil
}

func (s service) Encrypt(ctx context.Context, req *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	resp, err := s.plugin.encrypt(ctx, req.GetPlaintext())
	if err != nil {
		return nil, err
	}
	s.plugin.encrypts.Add(1)
	return resp, nil
}

func (s service) Decrypt(ctx context.Context, req *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	seed, err := s.plugin.decrypt(ctx, req.GetCiphertext(), req.GetKeyId(), req.GetAnnotations())
	if err != nil {
		return nil, err
	}
	s.plugin.decrypts.Add(1)
	return &kmsapi.DecryptResponse{Plaintext: seed}, nil
}
