package stack

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"azure-kms-plugin/test/vault/freeport"
)

// An APIServerConfig describes a kube-apiserver.
type APIServerConfig struct {
	Bin     string
	Dir     string // for certificates and the log
	EtcdURL string
	// EncryptionConfig is the path of the EncryptionConfiguration.
	EncryptionConfig string
	Args             []string // further flags
}

// An APIServer is a kube-apiserver process that can be started again under
// the same address and credentials.
type APIServer struct {
	*Process
	// Client speaks to the server as a cluster admin, over restarts.
	Client *Client
	cfg    APIServerConfig
	files  servingFiles
	port   int
	tokens string
}

// NewAPIServer makes the credentials of a kube-apiserver; nothing runs yet.
func NewAPIServer(cfg APIServerConfig) (*APIServer, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of kube-apiserver: %w", err)
	}
	files, err := makeServingFiles(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("making the certificates of kube-apiserver: %w", err)
	}
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	s := &APIServer{cfg: cfg, files: files, port: port, tokens: filepath.Join(cfg.Dir, "tokens.csv")}
	token := rand.Text()
	if err := os.WriteFile(s.tokens, []byte(token+",admin,admin,system:masters\n"), 0o600); err != nil {
		return nil, fmt.Errorf("writing the token of kube-apiserver: %w", err)
	}
	s.Client = &Client{
		url:   fmt.Sprintf("https://127.0.0.1:%d", port),
		token: token,
		http: &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: files.pool},
			ForceAttemptHTTP2: true,
		}},
	}
	return s, nil
}

// Start starts kube-apiserver and waits until /readyz is green, which takes
// the KMS provider's health check too.
func (s *APIServer) Start(ctx context.Context) error {
	if err := s.Launch(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, fmt.Errorf("not ready after 3 minutes"))
	defer cancel()
	if err := s.WaitReady(ctx, s.Client.Ready); err != nil {
		s.Kill()
		return err
	}
	return nil
}

// Launch starts kube-apiserver and does not wait for it.
func (s *APIServer) Launch() error {
	s.Client.http.CloseIdleConnections()
	p, err := Start(Command{
		Name: "kube-apiserver", Path: s.cfg.Bin, Args: s.args(),
		Log: filepath.Join(s.cfg.Dir, "kube-apiserver.log"), Grace: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	s.Process = p
	return nil
}

func (s *APIServer) args() []string {
	return append([]string{
		"--etcd-servers=" + s.cfg.EtcdURL,
		"--encryption-provider-config=" + s.cfg.EncryptionConfig,
		"--encryption-provider-config-automatic-reload=false", // as HyperShift runs it
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", s.port),
		// Nobody reaches this server through the kubernetes Service, and the
		// loopback interface may not be an endpoint of one.
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--cert-dir=" + s.cfg.Dir,
		"--tls-cert-file=" + s.files.cert,
		"--tls-private-key-file=" + s.files.key,
		"--client-ca-file=" + s.files.ca,
		"--token-auth-file=" + s.tokens,
		"--authorization-mode=AlwaysAllow",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + s.files.serviceAccount,
		"--service-account-signing-key-file=" + s.files.serviceAccount,
		"--service-cluster-ip-range=10.0.0.0/24",
		// There is no controller that would make service accounts.
		"--disable-admission-plugins=ServiceAccount",
		"--profiling=false",
	}, s.cfg.Args...)
}
