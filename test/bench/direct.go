package main

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// maxConcurrency is the most calls that the bench makes at the same time.
const maxConcurrency = 64

// apiVersion is what azkeys v1.5.0 asks for.
const apiVersion = "2025-07-01"

// A direct client calls the vault without a plugin, doing no more than a call
// needs: one POST on a connection that is kept, with a token that it has.
type direct struct {
	http  *http.Client
	token string
	key   string // URL of the key version
	pub   *rsa.PublicKey
}

func newDirect(ctx context.Context, e access, vaultName, version string) (*direct, error) {
	ca, err := os.ReadFile(e.CAFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("the emulator's CA file holds no certificate")
	}
	proxy, err := url.Parse(e.ProxyURL)
	if err != nil {
		return nil, err
	}
	d := &direct{
		http: &http.Client{
			Timeout: 10 * time.Second,
			Transport: &http.Transport{
				Proxy:               http.ProxyURL(proxy),
				TLSClientConfig:     &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
				MaxIdleConnsPerHost: maxConcurrency,
			},
		},
		key: "https://" + vaultName + ".vault.azure.net/keys/" + keyName + "/" + version,
	}
	if err := d.signIn(ctx, e); err != nil {
		return nil, fmt.Errorf("signing in: %w", err)
	}
	if err := d.fetchKey(ctx); err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	return d, nil
}

func (d *direct) close() { d.http.CloseIdleConnections() }

func (d *direct) signIn(ctx context.Context, e access) error {
	form := url.Values{
		"grant_type": {"client_credentials"}, "client_id": {e.ClientID}, "client_secret": {e.ClientSecret},
		"scope": {"https://vault.azure.net/.default"},
	}
	var out struct {
		Token string `json:"access_token"`
	}
	err := d.call(ctx, http.MethodPost, "https://login.microsoftonline.com/"+e.TenantID+"/oauth2/v2.0/token",
		"application/x-www-form-urlencoded", []byte(form.Encode()), &out)
	d.token = out.Token
	return err
}

func (d *direct) fetchKey(ctx context.Context) error {
	var out struct {
		Key struct {
			N, E string
		}
	}
	if err := d.call(ctx, http.MethodGet, d.key+"?api-version="+apiVersion, "", nil, &out); err != nil {
		return err
	}
	n, err := base64.RawURLEncoding.DecodeString(out.Key.N)
	if err != nil {
		return err
	}
	e, err := base64.RawURLEncoding.DecodeString(out.Key.E)
	if err != nil {
		return err
	}
	d.pub = &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}
	return nil
}

// encrypt and decrypt call the vault's operation of that name.
func (d *direct) encrypt(ctx context.Context, plaintext []byte) ([]byte, error) {
	return d.operate(ctx, "encrypt", plaintext)
}

func (d *direct) decrypt(ctx context.Context, block []byte) ([]byte, error) {
	return d.operate(ctx, "decrypt", block)
}

func (d *direct) operate(ctx context.Context, op string, value []byte) ([]byte, error) {
	body, err := json.Marshal(map[string]string{"alg": "RSA-OAEP-256", "value": base64.RawURLEncoding.EncodeToString(value)})
	if err != nil {
		return nil, err
	}
	var out struct {
		Value string `json:"value"`
	}
	if err := d.call(ctx, http.MethodPost, d.key+"/"+op+"?api-version="+apiVersion, "application/json", body, &out); err != nil {
		return nil, err
	}
	return base64.RawURLEncoding.DecodeString(out.Value)
}

func (d *direct) call(ctx context.Context, method, target, contentType string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if d.token != "" {
		req.Header.Set("Authorization", "Bearer "+d.token)
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, strings.Split(target, "?")[0], resp.Status)
	}
	return json.Unmarshal(data, out)
}
