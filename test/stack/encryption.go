package stack

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"time"
)

// A Provider is one KMS v2 entry of an EncryptionConfiguration.
type Provider struct {
	Name     string
	Endpoint string
	// Timeout of one call; zero leaves it to kube-apiserver, which takes 3 s.
	Timeout time.Duration
}

// HyperShiftResources are those that HyperShift has encrypted. kube-apiserver
// itself stores only the first two.
func HyperShiftResources() []string {
	return []string{
		"secrets", "configmaps", "routes.route.openshift.io",
		"oauthaccesstokens.oauth.openshift.io", "oauthauthorizetokens.oauth.openshift.io",
	}
}

// HyperShiftProviderName is the name that HyperShift gives the provider entry
// of a key version: a new one for each version.
func HyperShiftProviderName(vault, key, version string) string {
	// The hash is over exactly this text.
	text, _ := json.Marshal(struct {
		Vault   string `json:"keyVaultName"`
		Key     string `json:"keyName"`
		Version string `json:"keyVersion"`
	}{vault, key, version})
	h := fnv.New32a()
	h.Write(text)
	return fmt.Sprintf("azure-%08x", h.Sum32())
}

// WriteEncryptionConfig writes an EncryptionConfiguration to path: the first
// provider encrypts, the others only decrypt, and what is not encrypted may be read.
func WriteEncryptionConfig(path string, resources []string, providers ...Provider) error {
	type object = map[string]any
	var entries []object
	for _, p := range providers {
		kms := object{"apiVersion": "v2", "name": p.Name, "endpoint": p.Endpoint}
		if p.Timeout > 0 {
			kms["timeout"] = p.Timeout.String()
		}
		entries = append(entries, object{"kms": kms})
	}
	entries = append(entries, object{"identity": object{}})
	// JSON is YAML.
	text, err := json.MarshalIndent(object{
		"apiVersion": "apiserver.config.k8s.io/v1",
		"kind":       "EncryptionConfiguration",
		"resources":  []object{{"resources": resources, "providers": entries}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
