package vault_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"azure-kms-plugin/test/vault"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	"github.com/stretchr/testify/require"
)

// innerCode reads the inner code of the error that Microsoft's client got.
func innerCode(t *testing.T, err error) (code, inner, message string) {
	t.Helper()
	body, err := runtime.Payload(refusal(t, err).RawResponse)
	require.NoError(t, err)
	var e struct {
		Error struct {
			Code       string
			Message    string
			InnerError struct{ Code string }
		}
	}
	require.NoError(t, json.Unmarshal(body, &e))
	return e.Error.Code, e.Error.InnerError.Code, e.Error.Message
}

func TestWhatTheKeyItselfForbids(t *testing.T) {
	type allowed struct{ encrypt, decrypt string } // inner codes, empty for a success
	now := time.Now()
	for name, tc := range map[string]struct {
		cfg  vault.Config
		o    vault.KeyOptions
		want allowed
		text string
	}{
		"usable":                       {want: allowed{}},
		"valid now":                    {o: vault.KeyOptions{NotBefore: now.Add(-time.Hour), Expires: now.Add(time.Hour)}},
		"disabled":                     {o: vault.KeyOptions{Disabled: true}, want: allowed{"KeyDisabled", "KeyDisabled"}, text: "Operation decrypt is not allowed on a disabled key."},
		"disabled, the other report":   {cfg: vault.Config{EncryptWhenDisabled: true}, o: vault.KeyOptions{Disabled: true}, want: allowed{"", "KeyDisabled"}},
		"expired":                      {o: vault.KeyOptions{Expires: now.Add(-time.Hour)}, want: allowed{"KeyExpired", ""}, text: "Operation encrypt is not allowed on an expired key."},
		"not yet valid":                {o: vault.KeyOptions{NotBefore: now.Add(time.Hour)}, want: allowed{"KeyNotYetValid", ""}},
		"may only wrap":                {o: vault.KeyOptions{Ops: []string{"wrapKey", "unwrapKey"}}, want: allowed{"KeyOperationForbidden", "KeyOperationForbidden"}, text: "Operation decrypt is not permitted on this key."},
		"may only decrypt":             {o: vault.KeyOptions{Ops: []string{"decrypt"}}, want: allowed{"KeyOperationForbidden", ""}},
		"expired and disabled at once": {o: vault.KeyOptions{Disabled: true, Expires: now.Add(-time.Hour)}, want: allowed{"KeyDisabled", "KeyDisabled"}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := start(t, tc.cfg)
			v := srv.Vault("kvlab")
			plain, err := v.CreateKey("k1", vault.KeyOptions{})
			require.NoError(t, err)
			c := client(t, srv, v, srv.Transport())
			block, err := c.Encrypt(t.Context(), "k1", plain, params(azkeys.EncryptionAlgorithmRSAOAEP256, []byte("seed")), nil)
			require.NoError(t, err)
			tc.o.Key = sharedKey()
			ver, err := v.CreateKey("k1", tc.o)
			require.NoError(t, err)

			_, errEncrypt := c.Encrypt(t.Context(), "k1", ver, params(azkeys.EncryptionAlgorithmRSAOAEP256, []byte("seed")), nil)
			_, errDecrypt := c.Decrypt(t.Context(), "k1", ver, params(azkeys.EncryptionAlgorithmRSAOAEP256, block.Result), nil)
			if tc.want.encrypt == "" {
				require.NoError(t, errEncrypt)
			} else {
				code, inner, _ := innerCode(t, errEncrypt)
				require.Equal(t, []any{403, "Forbidden", tc.want.encrypt}, []any{refusal(t, errEncrypt).StatusCode, code, inner})
			}
			if tc.want.decrypt == "" {
				// Another version's ciphertext gets as far as the padding.
				code, inner, text := innerCode(t, errDecrypt)
				require.Equal(t, []any{400, "BadParameter", "", "Error occurred while decoding OAEP padding."},
					[]any{refusal(t, errDecrypt).StatusCode, code, inner, text})
			} else {
				_, inner, _ := innerCode(t, errDecrypt)
				require.Equal(t, tc.want.decrypt, inner)
			}
			if tc.text != "" {
				_, _, a := innerCode(t, errEncrypt)
				_, _, b := innerCode(t, errDecrypt)
				require.Contains(t, []string{a, b}, tc.text)
			}
			// The old version is as usable as ever, and GET never minds.
			_, err = c.Decrypt(t.Context(), "k1", plain, params(azkeys.EncryptionAlgorithmRSAOAEP256, block.Result), nil)
			require.NoError(t, err)
			got, err := c.GetKey(t.Context(), "k1", "", nil)
			require.NoError(t, err)
			require.Equal(t, ver, got.Key.KID.Version(), "the newest is current whatever its state")
			require.Equal(t, !tc.o.Disabled, *got.Attributes.Enabled)
		})
	}
}

func TestWhatTheRequestGetsWrong(t *testing.T) {
	srv := start(t, vault.Config{})
	v := srv.Vault("kvlab")
	ver, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	c := client(t, srv, v, srv.Transport())
	encrypt := func(name, version string, alg azkeys.EncryptionAlgorithm, n int) error {
		_, err := c.Encrypt(t.Context(), name, version, params(alg, make([]byte, n)), nil)
		return err
	}
	require.NoError(t, encrypt("k1", ver, azkeys.EncryptionAlgorithmRSAOAEP256, 190))
	require.NoError(t, encrypt("K1", strings.ToUpper(ver), azkeys.EncryptionAlgorithmRSAOAEP256, 1), "names have no case")

	for name, tc := range map[string]struct {
		err    error
		status int
		code   string
		text   string
	}{
		"too long":          {encrypt("k1", ver, azkeys.EncryptionAlgorithmRSAOAEP256, 191), 400, "BadParameter", "Property  has invalid value\r\n"},
		"another algorithm": {encrypt("k1", ver, azkeys.EncryptionAlgorithmA256GCM, 16), 400, "BadParameter", "Property  has invalid value\r\n"},
		"no such key":       {encrypt("k2", "", azkeys.EncryptionAlgorithmRSAOAEP256, 1), 404, "KeyNotFound", "A key with (name/id) k2 was not found in this key vault."},
		"no such version": {
			encrypt("k1", strings.Repeat("0", 32), azkeys.EncryptionAlgorithmRSAOAEP256, 1), 404, "KeyNotFound",
			"A key with (name/id) k1/" + strings.Repeat("0", 32) + " was not found in this key vault.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.status, refusal(t, tc.err).StatusCode)
			code, inner, text := innerCode(t, tc.err)
			require.Equal(t, tc.code, code)
			require.Empty(t, inner)
			require.Contains(t, text, tc.text)
			require.Empty(t, refusal(t, tc.err).RawResponse.Header.Get("WWW-Authenticate"))
			require.NotEmpty(t, refusal(t, tc.err).RawResponse.Header.Get("X-Ms-Request-Id"))
		})
	}
}

func TestBodiesThatAreNoRequest(t *testing.T) {
	srv := start(t, vault.Config{})
	v := srv.Vault("kvlab")
	_, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	hc := &http.Client{Transport: srv.Transport()}
	bearer := tokenFor(t, srv, hc, "https://vault.azure.net")
	post := func(path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, v.URL()+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+bearer)
		res, err := hc.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(b)
	}
	const api = "?api-version=2025-07-01"
	for _, body := range []string{"", "{", "[]", `{"alg":"RSA-OAEP-256"}`, `{"alg":"RSA-OAEP-256","value":"!"}`} {
		status, text := post("/keys/k1/encrypt"+api, body)
		require.Equal(t, 400, status, body)
		require.Contains(t, text, "BadParameter", body)
	}
	// Padding is not sent by clients, and not minded.
	status, _ := post("/keys/k1/encrypt"+api, `{"alg":"RSA-OAEP-256","value":"c2VlZA=="}`)
	require.Equal(t, 200, status)
	status, _ = post("//keys//k1//encrypt/"+api, `{"alg":"RSA-OAEP-256","value":"c2VlZA"}`)
	require.Equal(t, 200, status, "double and trailing slashes")
	status, text := post("/keys/k1/encrypt", `{"alg":"RSA-OAEP-256","value":"c2VlZA"}`)
	require.Equal(t, 400, status)
	require.Contains(t, text, "api-version")
	status, _ = post("/keys/k1/"+strings.Repeat("0", 32)+"/x/encrypt"+api, "{}")
	require.Equal(t, 404, status)
	status, _ = post("/keys/k1/encrypt"+api, string(bytes.Repeat([]byte(" "), 2<<20)))
	require.Equal(t, http.StatusRequestEntityTooLarge, status)
}

func TestRefusalsByAccessAndNetwork(t *testing.T) {
	srv := start(t, vault.Config{})
	v := srv.Vault("kvlab")
	_, err := v.CreateKey("k1", options())
	require.NoError(t, err)
	require.NoError(t, srv.AddPrincipal(vault.Principal{ClientID: "app-2", Secrets: []string{"s"}}))
	c := clientOf(t, srv, v, srv.Transport(), "app-2", "s")
	get := func() error { _, err := c.GetKey(t.Context(), "k1", "", nil); return err }
	encrypt := func() error {
		_, err := c.Encrypt(t.Context(), "k1", "", params(azkeys.EncryptionAlgorithmRSAOAEP256, []byte("seed")), nil)
		return err
	}
	wrap := func() error {
		_, err := c.WrapKey(t.Context(), "k1", "", params(azkeys.EncryptionAlgorithmRSAOAEP256, []byte("seed")), nil)
		return err
	}
	require.NoError(t, v.Allow("app-2", vault.PermEncrypt))
	require.NoError(t, encrypt())
	require.Error(t, v.Allow("app-3", vault.PermEncrypt), "an unknown principal")
	require.Error(t, v.Allow("app-2", "enccrypt"), "an unknown permission")

	expect := func(err error, status int, code, inner, text string) {
		t.Helper()
		require.Equal(t, status, refusal(t, err).StatusCode)
		gotCode, gotInner, gotText := innerCode(t, err)
		require.Equal(t, []string{code, inner}, []string{gotCode, gotInner})
		require.Contains(t, gotText, text)
	}
	expect(get(), 403, "Forbidden", "ForbiddenByRbac", "Action: 'Microsoft.KeyVault/vaults/keys/read'\r\n")
	expect(wrap(), 403, "Forbidden", "ForbiddenByRbac", "keys/wrap/action'")
	require.NoError(t, v.SetAccessModel(vault.AccessPolicy))
	expect(get(), 403, "Forbidden", "ForbiddenByPolicy", "does not have keys get permission on key vault 'kvlab;location=")
	require.NoError(t, v.SetAccessModel(vault.AccessPolicyLegacy))
	expect(wrap(), 403, "Forbidden", "AccessDenied", "does not have keys wrapKey permission")
	expect(get(), 403, "Forbidden", "AccessDenied", "appid=app-2;oid=")
	require.NoError(t, v.Allow("app-2"))
	require.Error(t, encrypt(), "nothing is allowed any more")

	// The firewall is asked before the permissions.
	require.NoError(t, v.SetNetwork(vault.NetworkFirewall))
	expect(encrypt(), 403, "Forbidden", "ForbiddenByFirewall", "Client address is not authorized and caller is not a trusted service.")
	require.NoError(t, v.SetNetwork(vault.NetworkNoPublic))
	expect(encrypt(), 403, "Forbidden", "ForbiddenByConnection", "Public network access is disabled")
	require.NoError(t, v.SetNetwork(vault.NetworkNotApproved))
	expect(encrypt(), 403, "Forbidden", "ForbiddenByConnection", "Connection is not an approved private link")
	require.NoError(t, v.SetNetwork(vault.NetworkOpen))
	require.NoError(t, v.Allow("app-2", vault.AllPermissions()...))
	require.NoError(t, encrypt())
	require.Error(t, v.SetNetwork("closed"))
	require.Error(t, v.SetAccessModel("acl"))
}
