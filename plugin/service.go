package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
)

// healthy is the one health text that kube-apiserver takes for good.
const healthy = "ok"

// A service is the KMS v2 service.
type service struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	keyring   Keyring
	readiness Readiness
	format    Format
	version   string
}

// Status answers from memory; only the first one after a start may wait.
func (s *service) Status(ctx context.Context, _ *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	if err := s.readiness.Ready(ctx); err != nil {
		return nil, err
	}
	id := connOf(ctx).tell(s.keyring.KeyID)
	if id == "" {
		return nil, errors.New("no key version is known yet")
	}
	if !keyvault.IsKeyID(id) {
		return nil, errors.New("the keyring's key ID is malformed")
	}
	noteOf(ctx).keyID = id
	return &kmsapi.StatusResponse{Version: s.version, Healthz: healthy, KeyId: id}, nil
}

// Encrypt answers under the ID that Status last told this connection.
func (s *service) Encrypt(ctx context.Context, req *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	inner, err := s.format.inner(req.GetPlaintext())
	if err != nil {
		return nil, err
	}
	c := connOf(ctx)
	c.isAPIServer()
	id := c.toldID()
	if id == "" {
		id = s.keyring.KeyID("")
	}
	note := noteOf(ctx)
	note.keyID = id
	block, key, err := s.keyring.Encrypt(ctx, id, inner)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(key.KeyIDs(), id) {
		return nil, fmt.Errorf("the keyring encrypted with %s under the ID of another key", key)
	}
	note.key = key
	resp := &kmsapi.EncryptResponse{
		Ciphertext:  s.format.outer(block),
		KeyId:       id,
		Annotations: annotationsFor(key),
	}
	if err := checkEncrypted(resp, s.format); err != nil {
		return nil, err
	}
	if ctx.Err() == nil {
		c.settle(id)
	}
	return resp, nil
}

// Decrypt opens what this plugin or either of the existing ones wrote.
func (s *service) Decrypt(ctx context.Context, req *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	if err := checkDecrypt(req); err != nil {
		return nil, err
	}
	hint, err := parseAnnotations(req.GetAnnotations())
	if err != nil {
		return nil, err
	}
	format, block, err := parseCiphertext(req.GetCiphertext())
	if err != nil {
		return nil, err
	}
	connOf(ctx).isAPIServer()
	inner, key, err := s.keyring.Decrypt(ctx, req.GetKeyId(), hint, block)
	if err != nil {
		if e, ok := errors.AsType[*keyvault.Error](err); ok {
			noteOf(ctx).belongs(req.GetKeyId(), e.Key)
		}
		return nil, err
	}
	noteOf(ctx).belongs(req.GetKeyId(), key)
	seed, err := format.seed(inner)
	if err != nil {
		return nil, err
	}
	return &kmsapi.DecryptResponse{Plaintext: seed}, nil
}
