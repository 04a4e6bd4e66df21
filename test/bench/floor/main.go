// Command floor is a KMS v2 server that does nothing: it links the libraries
// that the plugin links, binds a socket and answers Status with a constant.
// What it costs to start and to keep is the least that any plugin made of these
// libraries can cost on this machine.
//
//	floor <socket>
package main

import (
	"context"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"
)

type server struct {
	kmsapi.UnimplementedKeyManagementServiceServer
}

func (server) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	return &kmsapi.StatusResponse{Version: "v2beta1", Healthz: "ok", KeyId: "floor"}, nil
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: floor <socket>")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	logger, err := zap.NewProduction()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	credential, err := azidentity.NewClientSecretCredential("tenant", "client", "secret", nil)
	if err != nil {
		return err
	}
	if _, err := azkeys.NewClient("https://floor.vault.azure.net", credential, nil); err != nil {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	logger.Info("serving", zap.String("socket", socket))
	s := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(s, server{})
	context.AfterFunc(ctx, s.Stop)
	return s.Serve(l)
}
