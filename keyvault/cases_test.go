package keyvault_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

// C02: a secret that was written without escapes must not be taken for YAML,
// which knows more escapes than JSON, folds lines and takes plain text: it would
// be another secret, and the directory's refusal the only sign of it.
func TestReadConfig_NotQuiteJSONDoesNotAlterASecret(t *testing.T) {
	for name, secret := range map[string]string{
		"escape of YAML alone": `PwX\are9`, "hexadecimal": `PwX\x41re9`, "zero": `PwX\0re9`, "no-break space": `PwX\_re9`,
		"line end": "PwX\nre9", "escaped line end": "PwX \\\n re9", "quote and comma": `PwX",re9`, "quote, comma, colon": `PwX",re9: "z`,
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, "{\"tenantId\":\"t\",\"aadClientId\":\"c\",\n\"aadClientSecret\":\""+secret+"\"}")
			_, err := keyvault.ReadConfig(path)
			require.ErrorContains(t, err, path+": line 2, column ")
			require.NotContains(t, err.Error(), "PwX")
			require.NotContains(t, err.Error(), "re9")
		})
	}
	// Blank lines at the top count.
	_, err := keyvault.ReadConfig(writeFile(t, "\n\n{\n\"aadClientSecret\":\"PwX\"re9\"}"))
	require.ErrorContains(t, err, "line 4, column 24: ")
	// What leaves no doubt is still read.
	for _, text := range []string{
		`{"tenantId":"t","aadClientId":"c","aadClientSecret":"PwX",}`,
		"{\"tenantId\":\"t\",\"aadClientId\":\"c\", # a note\n\"aadClientSecret\":\"PwX\"}",
		`{tenantId: t, aadClientId: c, aadClientSecret: 'PwX'}`,
		"tenantId: t\naadClientId: c\naadClientSecret: \"\\x50wX\"\n", // all YAML
	} {
		cfg, err := keyvault.ReadConfig(writeFile(t, text))
		require.NoError(t, err, text)
		require.Equal(t, "PwX", cfg.ClientSecret.Reveal())
	}
}

// C09: sign-in host, vaults and audience come from the same cloud.
func TestParseCloud_BelongsTogether(t *testing.T) {
	for name, want := range map[string]keyvault.Cloud{
		"AzurePublicCloud":  {"AzurePublicCloud", "https://login.microsoftonline.com/", "vault.azure.net", "managedhsm.azure.net"},
		"AzureUSGovernment": {"AzureUSGovernmentCloud", "https://login.microsoftonline.us/", "vault.usgovcloudapi.net", "managedhsm.usgovcloudapi.net"},
		"azurechinacloud":   {"AzureChinaCloud", "https://login.chinacloudapi.cn/", "vault.azure.cn", "managedhsm.azure.cn"},
	} {
		got, err := keyvault.ParseCloud(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// G04: an answer that does not say under which version it was made, or another
// one, does not become ciphertext under our key ID.
func TestClient_EncryptNeedsItsVersionBack(t *testing.T) {
	for _, kid := range []string{
		`"https://kvlab.vault.azure.net/keys/k1"`, `"https://kvlab.vault.azure.net/keys/k1/"`, `""`, `null`, `"x"`,
		`"https://kvlab.vault.azure.net/keys/k1/` + v2 + `"`, `"https://kvlab.vault.azure.net/keys/k2/` + v1 + `"`,
		`"https://kvlab.vault.azure.net/secrets/k1/` + v1 + `"`,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWeb()
			w.answer = func(r request) (*http.Response, error) {
				return reply(r.http, 200, `{"kid":`+kid+`,"value":"AAAA"}`), nil
			}
			c, _ := newClient(t, w, &bank{})
			got, err := c.Encrypt(within(t, 3*time.Second), key1, []byte("seed"))
			require.Nil(t, got)
			require.Equal(t, keyvault.Unknown, failure(t, err).Reason, kid)
		})
	}
}

// A plaintext that is too long for this key is the caller's fault. The key's
// size is not known without the permission "get", so the vault has to say it;
// no breaker opens and no evidence is counted.
func TestClient_PlaintextTooLongForTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = always(400, "BadParameter", "", "Property  has invalid value\r\n")
		c, seen := newClient(t, w, &bank{})
		for range 5 {
			_, err := c.Encrypt(within(t, 3*time.Second), key1, []byte(strings.Repeat("x", 191)))
			e := failure(t, err)
			require.Equal(t, keyvault.BadRequest, e.Reason)
			require.Contains(t, e.Text, "191 bytes")
		}
		require.Equal(t, 5, w.calls("encrypt"), "the breaker has not opened")
		for _, o := range seen.outcomes {
			require.Equal(t, keyvault.KindCaller, o.Err.Reason.Kind())
		}
		// What fits every key cannot be to blame.
		_, err := c.Encrypt(within(t, 3*time.Second), key1, []byte(strings.Repeat("x", 190)))
		require.Equal(t, keyvault.Unknown, failure(t, err).Reason)
	})
}

// One caller's short patience is no fault of the vault, and not the others' loss.
func TestClient_HastyCallerHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.answer = func(r request) (*http.Response, error) { return nil, wait(r, 150*time.Millisecond) }
		c, seen := newClient(t, w, &bank{})
		_, err := c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err)
		for range 10 {
			_, err := c.Decrypt(within(t, 60*time.Millisecond), key1, []byte("block"))
			require.Equal(t, keyvault.CauseTimeout, failure(t, err).Cause)
		}
		require.Len(t, seen.outcomes, 1, "no evidence")
		_, err = c.Decrypt(within(t, 3*time.Second), key1, []byte("block"))
		require.NoError(t, err, "no breaker")
	})
}
