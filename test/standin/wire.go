package standin

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	kmsapi "k8s.io/kms/apis/v2"
)

// A Format is the wire format of one of the existing plugins, by the name
// that --ciphertext-format has for it.
type Format string

const (
	// Azure is Azure/kubernetes-kms: the vault encrypts the seed, and the
	// ciphertext is the block as base64url text.
	Azure Format = "azure"
	// OpenShift is OpenShift's fork: the vault encrypts the seed as base64url
	// text, and the ciphertext is the block.
	OpenShift Format = "openshift"
)

const (
	versionKey   = "version.azure.akv.io"
	algorithmKey = "algorithm.azure.akv.io"

	version   = "1"
	algorithm = azkeys.EncryptionAlgorithmRSAOAEP256
)

// answerKeys are the annotations that Azure's takes from the vault's answer,
// and never reads.
var answerKeys = map[string]string{
	"date.azure.akv.io":                 "Date",
	"x-ms-request-id.azure.akv.io":      "X-Ms-Request-Id",
	"x-ms-keyvault-region.azure.akv.io": "X-Ms-Keyvault-Region",
}

var text = base64.RawURLEncoding.Strict()

func (p *Plugin) encrypt(ctx context.Context, seed []byte) (*kmsapi.EncryptResponse, error) {
	inner := seed
	if p.cfg.Format == OpenShift {
		inner = text.AppendEncode(nil, seed)
	}
	var answer *http.Response
	result, err := p.client.Encrypt(policy.WithCaptureResponse(ctx, &answer), p.cfg.Key, p.cfg.Version,
		azkeys.KeyOperationParameters{Algorithm: to.Ptr(algorithm), Value: inner}, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to encrypt, error: %w", err)
	}
	if result.KID == nil || hash(string(*result.KID)) != p.keyID {
		return nil, errors.New("key id initialized does not match with the key id from encryption result")
	}
	resp := &kmsapi.EncryptResponse{
		Ciphertext:  result.Result,
		KeyId:       p.keyID,
		Annotations: map[string][]byte{versionKey: []byte(version), algorithmKey: []byte(algorithm)},
	}
	if p.cfg.Format == Azure {
		resp.Ciphertext = text.AppendEncode(nil, result.Result)
		for key, header := range answerKeys {
			resp.Annotations[key] = []byte(answer.Header.Get(header))
		}
	}
	return resp, nil
}

func (p *Plugin) decrypt(ctx context.Context, ciphertext []byte, keyID string, annotations map[string][]byte) ([]byte, error) {
	if err := p.validate(keyID, annotations); err != nil {
		return nil, err
	}
	block := ciphertext
	if p.cfg.Format == Azure {
		var err error
		if block, err = text.DecodeString(string(ciphertext)); err != nil {
			return nil, fmt.Errorf("the ciphertext is not base64url text: %w", err)
		}
	}
	result, err := p.client.Decrypt(ctx, p.cfg.Key, p.cfg.Version,
		azkeys.KeyOperationParameters{Algorithm: to.Ptr(algorithm), Value: block}, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to decrypt, error: %w", err)
	}
	if p.cfg.Format != OpenShift {
		return result.Result, nil
	}
	seed, err := text.DecodeString(string(result.Result))
	if err != nil {
		return nil, fmt.Errorf("failed to base64 decode result, error: %w", err)
	}
	return seed, nil
}

// validate makes the checks that both plugins make before a decrypt.
func (p *Plugin) validate(keyID string, annotations map[string][]byte) error {
	if len(annotations) == 0 {
		return errors.New("invalid annotations, annotations cannot be empty")
	}
	if keyID != p.keyID {
		return fmt.Errorf("key id %s does not match expected key id %s used for encryption", keyID, p.keyID)
	}
	if got := string(annotations[algorithmKey]); got != string(algorithm) {
		return fmt.Errorf("algorithm %s does not match expected algorithm %s used for encryption", got, algorithm)
	}
	if got := string(annotations[versionKey]); got != version {
		return fmt.Errorf("version %s does not match expected version %s used for encryption", got, version)
	}
	return nil
}

func hash(kid string) string {
	sum := sha256.Sum256([]byte(kid))
	return hex.EncodeToString(sum[:])
}
