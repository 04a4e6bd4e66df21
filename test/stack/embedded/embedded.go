// Package embedded runs what stands between the Kubernetes API and etcd inside
// the caller's process: an etcd server, kube-apiserver's own encryption stack
// for KMS v2, and its etcd store for secrets. What it writes is what
// kube-apiserver would write, byte for byte, without the minutes that building
// kube-apiserver takes.
//
// Begin with [StartEtcd] and [Open].
//
// # Concurrency
//
// A Store may be used by any number of goroutines, except for Close.
//
// # Failure
//
// Open waits until kube-apiserver's health check is content with the plugin,
// and otherwise returns what that check said.
package embedded

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc/grpclog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/klog/v2"
)

// Quiet sends the logs of etcd's and Kubernetes' libraries, which are kept per
// process, to w. Call it before anything else here.
func Quiet(w io.Writer) {
	klog.LogToStderr(false)
	klog.SetOutput(w)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, w))
}

// An Etcd is an etcd server of one member in this process.
type Etcd struct {
	URL    string
	server *embed.Etcd
}

// StartEtcd starts etcd over the data in dir and waits until it serves.
func StartEtcd(ctx context.Context, dir string) (*Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.UnsafeNoFsync = true // the data need not outlive a power cut
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	free := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{free}, []url.URL{free}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{free}, []url.URL{free}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("starting the embedded etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		server.Close()
		return nil, fmt.Errorf("starting the embedded etcd: %w", err)
	case <-ctx.Done():
		server.Close()
		return nil, fmt.Errorf("waiting for the embedded etcd: %w", ctx.Err())
	}
	return &Etcd{URL: "http://" + server.Clients[0].Addr().String(), server: server}, nil
}

// Close stops etcd; its data stay.
func (e *Etcd) Close() { e.server.Close() }

// A Store keeps secrets in etcd as kube-apiserver does.
type Store struct {
	storage storage.Interface
	raw     *clientv3.Client
	health  []healthz.HealthChecker
	stop    []func()
}

const resourcePrefix = "/secrets"

// Open loads the EncryptionConfiguration in file as a starting kube-apiserver
// does, with cold caches, and opens the store for secrets behind it.
func Open(ctx context.Context, etcdURL, file string) (_ *Store, err error) {
	s := &Store{}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	// The health loops of the encryption stack run for as long as this context.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = append(s.stop, cancel)
	encryption, err := encryptionconfig.LoadEncryptionConfig(life, file, false, "embedded")
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", file, err)
	}
	s.health = encryption.HealthChecks
	if err := s.waitHealthy(ctx); err != nil {
		return nil, err
	}

	codec, err := codec()
	if err != nil {
		return nil, err
	}
	secrets := schema.GroupResource{Resource: "secrets"}
	cfg := storagebackend.NewDefaultConfig("/registry", codec)
	cfg.Transport.ServerList = []string{etcdURL}
	cfg.Transformer = encryptionconfig.StaticTransformers(encryption.Transformers).TransformerForResource(secrets)
	cfg.CompactionInterval = 0
	store, destroy, err := factory.Create(*cfg.ForResource(secrets),
		func() runtime.Object { return &corev1.Secret{} },
		func() runtime.Object { return &corev1.SecretList{} },
		resourcePrefix)
	if err != nil {
		return nil, fmt.Errorf("opening the store: %w", err)
	}
	s.storage, s.stop = store, append(s.stop, destroy)

	s.raw, err = clientv3.New(clientv3.Config{Endpoints: []string{etcdURL}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd: %w", err)
	}
	s.stop = append(s.stop, func() { s.raw.Close() })
	return s, nil
}

// codec writes version 1 secrets as protobuf, as kube-apiserver does.
func codec() (runtime.Codec, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	factory := serializer.NewCodecFactory(scheme)
	protobuf, ok := runtime.SerializerInfoForMediaType(factory.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return nil, fmt.Errorf("no serializer for %s", runtime.ContentTypeProtobuf)
	}
	v1 := corev1.SchemeGroupVersion
	return factory.CodecForVersions(protobuf.Serializer, factory.UniversalDeserializer(), v1, v1), nil
}

func (s *Store) waitHealthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		err := s.Healthy(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the KMS provider to be healthy: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Healthy reports what kube-apiserver's health check of its KMS providers
// says. The check keeps its verdict for 20 s when good and 3 s when bad.
func (s *Store) Healthy(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/kms-providers", nil)
	if err != nil {
		return err
	}
	for _, check := range s.health {
		if err := check.Check(req); err != nil {
			return err
		}
	}
	return nil
}

// Create stores a new secret.
func (s *Store) Create(ctx context.Context, secret *corev1.Secret) error {
	return s.storage.Create(ctx, key(secret.Namespace, secret.Name), secret, &corev1.Secret{}, 0)
}

// Get reads a secret from etcd.
func (s *Store) Get(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := s.storage.Get(ctx, key(namespace, name), storage.GetOptions{}, secret)
	return secret, err
}

// Rewrite updates a secret without a change, as a storage migration does: the
// store writes it only when it is not under the current key.
func (s *Store) Rewrite(ctx context.Context, namespace, name string) error {
	return s.storage.GuaranteedUpdate(ctx, key(namespace, name), &corev1.Secret{}, false, nil,
		func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) { return in, nil, nil }, nil)
}

// Raw is a secret as it lies in etcd, with its etcd key and revision.
func (s *Store) Raw(ctx context.Context, namespace, name string) (etcdKey string, value []byte, revision int64, err error) {
	etcdKey = "/registry" + key(namespace, name)
	resp, err := s.raw.Get(ctx, etcdKey)
	if err != nil {
		return etcdKey, nil, 0, fmt.Errorf("reading %s from etcd: %w", etcdKey, err)
	}
	if len(resp.Kvs) == 0 {
		return etcdKey, nil, 0, fmt.Errorf("reading %s from etcd: there is no such key", etcdKey)
	}
	return etcdKey, resp.Kvs[0].Value, resp.Kvs[0].ModRevision, nil
}

// Close ends the store, the health loops and their connections to the plugin.
func (s *Store) Close() {
	for i := len(s.stop) - 1; i >= 0; i-- {
		s.stop[i]()
	}
	s.stop = nil
}

func key(namespace, name string) string { return resourcePrefix + "/" + namespace + "/" + name }
