package keyvault_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
)

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "azure.json")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestReadConfig_AsHyperShiftWritesIt(t *testing.T) {
	cfg, err := keyvault.ReadConfig(writeFile(t, `{
  "cloud": "AzurePublicCloud", "tenantId": "11111111-2222-3333-4444-555555555555",
  "useManagedIdentityExtension": false, "useWorkloadIdentityExtension": true,
  "subscriptionId": "s", "resourceGroup": "r", "location": "westeurope", "cloudProviderBackoffRetries": 6,
  "cloudProviderBackoff": true, "loadBalancerSku": "standard", "nested": {"aadClientId": "ignored"}, "list": [1, 2]
}`))
	require.NoError(t, err)
	require.Equal(t, "workload identity", cfg.Method())
	require.True(t, cfg.UseWorkloadIdentity)
	require.False(t, cfg.UseManagedIdentity)
	require.Equal(t, "AzurePublicCloud", cfg.Cloud().Name)
}

func TestReadConfig_YAMLAndSpellings(t *testing.T) {
	for _, text := range []string{
		"tenantid: t\naadClientID: c\nAADCLIENTSECRET: '12345'\n",
		"tenantId: t\naadClientId: c\naadClientSecret: 12345\nother: [1]\n",
		"{tenantId: t, aadClientId: c, aadClientSecret: \"12345\"}",
		"\xef\xbb\xbf{\"tenantId\":\"t\",\"aadClientId\":\"c\",\"aadClientSecret\":\"12345\"}\r\n",
		"{\n\t\"tenantId\":\"t\",\n\t\"aadClientId\":\"c\",\n\t\"aadClientSecret\":12345\n}",
	} {
		cfg, err := keyvault.ReadConfig(writeFile(t, text))
		require.NoError(t, err, text)
		require.Equal(t, "client secret", cfg.Method())
		require.Equal(t, "c", cfg.ClientID)
		require.Equal(t, "12345", cfg.ClientSecret.Reveal())
	}
}

func TestReadConfig_SecretIsTakenAsWritten(t *testing.T) {
	cfg, err := keyvault.ReadConfig(writeFile(t, `{"tenantId":"t","aadClientId":"c","aadClientSecret":"a\"b\\c+d&e=f%20 ~\ud83d\ude00"}`))
	require.NoError(t, err)
	require.Equal(t, `a"b\c+d&e=f%20 ~😀`, cfg.ClientSecret.Reveal())
}

func TestReadConfig_Faults(t *testing.T) {
	const whole = `{"tenantId":"t","aadClientId":"c","aadClientSecret":"CANARY"}`
	const principal = `"tenantId":"t","aadClientId":"c",`
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"empty":              {"", []string{"empty file"}},
		"white space":        {" \n", []string{"empty file"}},
		"null":               {"null", []string{"no credential"}},
		"no fields":          {"{}", []string{"no credential"}},
		"a list":             {"[]", []string{"line 1: not an object"}},
		"only tenant":        {`{"tenantId":"t"}`, []string{"no credential"}},
		"secret alone":       {`{"aadClientSecret":"CANARY"}`, []string{"aadClientId is missing", "tenantId is missing"}},
		"certificate alone":  {`{"aadClientCertPath":"/x"}`, []string{"aadClientId is missing", "tenantId is missing"}},
		"id alone":           {`{` + principal + `"cloud":""}`, []string{"neither aadClientSecret nor aadClientCertPath"}},
		"bool as text":       {`{"useManagedIdentityExtension":"CANARY"}`, []string{"line 1: useManagedIdentityExtension must be true or false"}},
		"number as bool":     {"\n\nuseManagedIdentityExtension: 7", []string{"line 3: useManagedIdentityExtension must be true or false"}},
		"object as text":     {`{"aadClientSecret":{"a":"CANARY"}}`, []string{"aadClientSecret must be a single value"}},
		"twice":              {"{\"aadClientID\":\"a\",\n\"aadClientId\":\"b\"}", []string{"line 2: aadClientId is given twice, first on line 1"}},
		"placeholder":        {`{"userAssignedIdentityID":"","aadClientId":"msi","aadClientSecret":"msi"}`, []string{"placeholder", "useManagedIdentityExtension"}},
		"unescaped quote":    {"{\n \"aadClientSecret\":\"PwX\"re9\"}", []string{"line 2, column 25: not valid JSON"}},
		"broken yaml":        {"a: 1\nb: *CANARY\n", []string{"neither valid JSON nor valid YAML"}},
		"broken yaml, line":  {"a: 1\n b: [CANARY\n", []string{"line", "neither valid JSON nor valid YAML"}},
		"garbage after it":   {whole + "garbage", []string{"line 1, column 62: not valid JSON"}},
		"a comma after it":   {whole + ",", []string{"line 1, column 62: not valid JSON"}},
		"a second object":    {whole + "\n{\"tenantId\":\"CANARY\"}", []string{"line 2, column 1: not valid JSON"}},
		"a second document":  {"tenantId: t\n---\ntenantId: CANARY\n", []string{"line 3: something follows"}},
		"yaml after it":      {whole + "\ntenantId: CANARY\n", []string{"line 2, column 1: not valid JSON"}},
		"cloud":              {`{` + principal + `"aadClientSecret":"s","cloud":"Nope"}`, []string{`"Nope"`, "AzurePublicCloud, AzureUSGovernmentCloud, AzureChinaCloud"}},
		"angle brackets":     {`{"tenantId":"<tenant>","aadClientId":"<client>","aadClientSecret":"CANARY"}`, []string{"tenantId: is a placeholder", "aadClientId: is a placeholder"}},
		"unused brackets":    {`{"tenantId":"<tenant>","useManagedIdentityExtension":true}`, []string{"tenantId: is a placeholder in angle brackets: put the ID itself"}},
		"identity, bad":      {`{"useManagedIdentityExtension":true,"userAssignedIdentityId":"my-identity"}`, []string{"userAssignedIdentityID: write a client ID"}},
		"identity, unused":   {`{"userAssignedIdentityId":"11111111-2222-3333-4444-555555555555"}`, []string{"useManagedIdentityExtension is not true"}},
		"two faults at once": {`{"useManagedIdentityExtension":"x","useWorkloadIdentityExtension":"y"}`, []string{"useManagedIdentityExtension must", "useWorkloadIdentityExtension must"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, tt.text)
			_, err := keyvault.ReadConfig(path)
			require.Error(t, err)
			for line := range strings.Lines(err.Error()) {
				require.True(t, strings.HasPrefix(line, path+": "), line)
			}
			for _, want := range tt.want {
				require.Contains(t, err.Error(), want)
			}
			for _, secret := range []string{"CANARY", "PwX", "re9"} {
				require.NotContains(t, err.Error(), secret)
			}
		})
	}
}

// A vault in another cloud than the sign-in host's cannot be meant; where the way to
// sign in has no host of a cloud, only what the file says of it counts.
func TestAzureConfig_CheckHost(t *testing.T) {
	const secret, managed = `"tenantId":"t","aadClientId":"c","aadClientSecret":"s"`, `"useManagedIdentityExtension":true`
	for _, tc := range []struct {
		fields, host string
		ok           bool
	}{
		{secret, "kvlab.vault.azure.net", true},
		{secret, "KvLab.Vault.Azure.Net", true},
		{secret, "hsm.managedhsm.azure.net", true},
		{secret, "vault.example", true},
		{secret, "kvlab.vault.azure.cn", false},
		{secret, "hsm.managedhsm.usgovcloudapi.net", false},
		{secret + `,"cloud":"AzureChina"`, "kvlab.vault.azure.cn", true},
		{secret + `,"cloud":"AzureChina"`, "kvlab.vault.azure.net", false},
		{managed, "kvlab.vault.azure.cn", true},
		{managed + `,"cloud":"AzurePublicCloud"`, "kvlab.vault.azure.cn", false},
		{`"aadMSIDataPlaneIdentityPath":"/i"`, "kvlab.vault.azure.cn", true},
	} {
		cfg, err := keyvault.ReadConfig(writeFile(t, "{"+tc.fields+"}"))
		require.NoError(t, err)
		if err := cfg.CheckHost(tc.host); tc.ok {
			require.NoError(t, err, "%s %s", tc.fields, tc.host)
		} else {
			require.ErrorContains(t, err, tc.host+" is in Azure", "%s", tc.fields)
			require.ErrorContains(t, err, cfg.Cloud().Name)
		}
	}
}

func TestAzureConfig_Unused(t *testing.T) {
	for fields, want := range map[string]int{
		`"aadClientSecret":"s"`:                                                             0,
		`"aadClientSecret":"s","aadClientCertPath":"/c"`:                                    1,
		`"aadClientCertPath":"/c"`:                                                          0,
		`"aadClientCertPath":"/c","aadMSIDataPlaneIdentityPath":"/i"`:                       1,
		`"aadClientSecret":"s","aadClientCertPath":"/c","aadMSIDataPlaneIdentityPath":"/i"`: 2,
		// As files of the cloud provider have it.
		`"aadClientSecret":"msi","useManagedIdentityExtension":true`: 0,
	} {
		cfg, err := keyvault.ReadConfig(writeFile(t, `{"tenantId":"t","aadClientId":"c",`+fields+`}`))
		require.NoError(t, err)
		require.Len(t, cfg.Unused(), want, fields)
	}
}

func TestReadConfig_Identities(t *testing.T) {
	for _, id := range []string{"", "11111111-2222-3333-4444-555555555555", "/subscriptions/s/resourcegroups/r/providers/Microsoft.ManagedIdentity/userAssignedIdentities/x"} {
		for _, field := range []string{"userAssignedIdentityID", "userAssignedIdentityId"} {
			cfg, err := keyvault.ReadConfig(writeFile(t, fmt.Sprintf(`{"useManagedIdentityExtension":"True","aadClientId":"msi","aadClientSecret":"msi",%q:%q}`, field, id)))
			require.NoError(t, err)
			require.Equal(t, "managed identity", cfg.Method())
			require.Equal(t, id, cfg.UserAssignedIdentityID)
		}
	}
}

func TestReadConfig_OrderOfMethods(t *testing.T) {
	fields := []string{`"useWorkloadIdentityExtension":true`, `"useManagedIdentityExtension":true`, `"aadClientSecret":"s"`, `"aadClientCertPath":"/x"`, `"aadMSIDataPlaneIdentityPath":"/y"`}
	for i, want := range []string{"workload identity", "managed identity", "client secret", "client certificate", "MSI data-plane identity"} {
		cfg, err := keyvault.ReadConfig(writeFile(t, `{"tenantId":"t","aadClientId":"c",`+strings.Join(fields[i:], ",")+`}`))
		require.NoError(t, err)
		require.Equal(t, want, cfg.Method())
	}
}

func TestReadConfig_Unreadable(t *testing.T) {
	_, err := keyvault.ReadConfig("/no/such/azure.json")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, "reading /no/such/azure.json: no such file or directory", err.Error())

	_, err = keyvault.ReadConfig(t.TempDir())
	require.ErrorContains(t, err, "is not a regular file")

	path := writeFile(t, strings.Repeat(" ", 2<<20))
	_, err = keyvault.ReadConfig(path)
	require.ErrorContains(t, err, "2097152 bytes")
}

func TestAzureConfig_HidesItsSecrets(t *testing.T) {
	cfg, err := keyvault.ReadConfig(writeFile(t, `{"tenantId":"t","aadClientId":"c","aadClientSecret":"SECRETCANARY","aadClientCertPassword":"SECRETCANARY"}`))
	require.NoError(t, err)
	cred, err := keyvault.NewCredential(cfg, keyvault.CredentialOptions{})
	require.NoError(t, err)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		for _, v := range []any{cfg, *cfg, cfg.ClientSecret, &cfg.ClientSecret, cred, reflect.ValueOf(cred).Elem().Interface()} {
			text := fmt.Sprintf(verb, v)
			require.NotContains(t, text, "CANARY", verb)
			require.NotContains(t, strings.ToLower(text), fmt.Sprintf("%x", "CANARY"), verb)
		}
	}
	text, err := cfg.ClientSecret.MarshalText()
	require.NoError(t, err)
	require.Equal(t, "REDACTED", string(text))
	require.Contains(t, fmt.Sprintf("%+v", cfg), "REDACTED")
}

func TestParseCloud(t *testing.T) {
	for name, suffix := range map[string]string{
		"": "vault.azure.net", "AzurePublicCloud": "vault.azure.net", "AZUREPUBLICCLOUD": "vault.azure.net", "AzureCloud": "vault.azure.net",
		"AzureUSGovernmentCloud": "vault.usgovcloudapi.net", "AzureUSGovernment": "vault.usgovcloudapi.net",
		"AzureChinaCloud": "vault.azure.cn",
	} {
		c, err := keyvault.ParseCloud(name)
		require.NoError(t, err)
		require.Equal(t, "KvLab."+suffix, c.VaultHost("KvLab", false))
		require.Equal(t, "m."+strings.Replace(suffix, "vault", "managedhsm", 1), c.VaultHost("m", true))
		require.True(t, strings.HasPrefix(c.Authority, "https://login."))
	}
	gov, err := keyvault.ParseCloud("azureusgovernment")
	require.NoError(t, err)
	require.Equal(t, "https://login.microsoftonline.us/", gov.Authority)
}
