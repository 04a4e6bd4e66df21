// Command floor is the plainest KMS v2 server that could be made of the libraries
// that the plugin links: it binds a socket, signs in, has Microsoft's client as it
// comes encrypt and decrypt once, and then answers Status with a constant and all
// else by that client. What it costs to start, to keep and to call is what these
// libraries cost on this machine.
//
//	floor <socket> <vault host> <key name> <key version>
//
// The variables AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET say as
// whom it signs in.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kmsapi "k8s.io/kms/apis/v2"
)

type server struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	client       *azkeys.Client
	key, version string
	ready        atomic.Bool
}

func (s *server) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	if !s.ready.Load() {
		return nil, status.Error(codes.Unavailable, "not tried yet")
	}
	return &kmsapi.StatusResponse{Version: "v2beta1", Healthz: "ok", KeyId: "floor"}, nil
}

func (s *server) Encrypt(ctx context.Context, r *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	out, err := s.client.Encrypt(ctx, s.key, s.version, params(r.Plaintext), nil)
	return &kmsapi.EncryptResponse{Ciphertext: out.Result, KeyId: "floor"}, err
}

func (s *server) Decrypt(ctx context.Context, r *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	out, err := s.client.Decrypt(ctx, s.key, s.version, params(r.Ciphertext), nil)
	return &kmsapi.DecryptResponse{Plaintext: out.Result}, err
}

func params(value []byte) azkeys.KeyOperationParameters {
	return azkeys.KeyOperationParameters{Algorithm: to.Ptr(azkeys.EncryptionAlgorithmRSAOAEP256), Value: value}
}

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: floor <socket> <vault host> <key name> <key version>")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func run(socket, host, key, version string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	logger, err := zap.NewProduction()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	credential, err := azidentity.NewClientSecretCredential(
		os.Getenv("AZURE_TENANT_ID"), os.Getenv("AZURE_CLIENT_ID"), os.Getenv("AZURE_CLIENT_SECRET"), nil)
	if err != nil {
		return err
	}
	client, err := azkeys.NewClient("https://"+host, credential, nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	logger.Info("serving", zap.String("socket", socket))
	s := &server{client: client, key: key, version: version}
	go func() {
		if err := s.roundTrip(ctx); err != nil {
			logger.Error("the first round trip did not succeed", zap.Error(err))
			return
		}
		s.ready.Store(true)
	}()
	g := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(g, s)
	context.AfterFunc(ctx, g.Stop)
	return g.Serve(l)
}

func (s *server) roundTrip(ctx context.Context) error {
	encrypted, err := s.client.Encrypt(ctx, s.key, s.version, params(make([]byte, 32)), nil)
	if err != nil {
		return err
	}
	_, err = s.client.Decrypt(ctx, s.key, s.version, params(encrypted.Result), nil)
	return err
}
