package keyvault_test

import (
	"testing"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/stretchr/testify/require"
)

// Case A07: the audience is the one that the vault's challenge names, in every
// cloud, for both kinds of vault and every way to sign in, with no slash at its end.
func TestSignIn_AudienceFollowsTheChallenge(t *testing.T) {
	const user = "77777777-bbbb-cccc-dddd-eeeeeeeeeeee"
	const resource = "/subscriptions/s/resourcegroups/r/providers/Microsoft.ManagedIdentity/userAssignedIdentities/x"
	for cloud, c := range map[string]struct{ login, vault, hsm string }{
		"AzurePublicCloud":       {"login.microsoftonline.com", "vault.azure.net", "managedhsm.azure.net"},
		"AzureUSGovernmentCloud": {"login.microsoftonline.us", "vault.usgovcloudapi.net", "managedhsm.usgovcloudapi.net"},
		"AzureChinaCloud":        {"login.chinacloudapi.cn", "vault.azure.cn", "managedhsm.azure.cn"},
	} {
		for _, suffix := range []string{c.vault, c.hsm} {
			for way, sign := range map[string]struct {
				fields map[string]any
				op     vault.Op
				host   string
			}{
				"secret":                 {map[string]any{"aadClientId": "app", "aadClientSecret": "s"}, vault.OpToken, c.login},
				"system identity":        {map[string]any{"useManagedIdentityExtension": true}, vault.OpIMDS, "169.254.169.254"},
				"identity, client ID":    {map[string]any{"useManagedIdentityExtension": true, "userAssignedIdentityID": user}, vault.OpIMDS, "169.254.169.254"},
				"identity, resource ID":  {map[string]any{"useManagedIdentityExtension": true, "userAssignedIdentityID": resource}, vault.OpIMDS, "169.254.169.254"},
				"federated token":        {map[string]any{"useWorkloadIdentityExtension": true}, vault.OpToken, c.login},
				"identity file, its own": {map[string]any{"aadMSIDataPlaneIdentityPath": ""}, vault.OpToken, map[string]string{"AzurePublicCloud": "eastus.login.microsoft.com", "AzureChinaCloud": "login.partner.microsoftonline.cn"}[cloud]},
			} {
				t.Run(cloud+" "+suffix+" "+way, func(t *testing.T) {
					if sign.host == "" {
						sign.host = c.login
					}
					l := newLab(t, vault.Config{})
					v, err := l.srv.VaultAt("kvcloud." + suffix)
					require.NoError(t, err)
					require.NoError(t, v.ImportKey("k1", v2, testKey(t)))
					l.ref = keyvault.Ref{Host: v.Host(), Name: "k1", Version: v2}
					fields := map[string]any{"cloud": cloud, "tenantId": l.srv.TenantID}
					for name, value := range sign.fields {
						fields[name] = value
					}
					if _, ok := fields["aadMSIDataPlaneIdentityPath"]; ok {
						file, _ := identityFile(t, l.srv, vault.IdentityFileOptions{Host: sign.host}, nil)
						fields["aadMSIDataPlaneIdentityPath"] = writeFile(t, string(file))
					} else {
						require.NoError(t, l.srv.AddPrincipal(vault.Principal{ClientID: "app", Secrets: []string{"s"}, Assertions: []string{federated("J1")}}))
					}
					system := "system-" + versionID(int(time.Now().UnixNano()))
					l.srv.SetIdentities(vault.Identity{ClientID: system, System: true}, vault.Identity{ClientID: user, ResourceID: resource})
					for _, id := range []string{"app", system, user} {
						if id != "app" {
							require.NoError(t, l.srv.AddPrincipal(vault.Principal{ClientID: id}))
						}
						require.NoError(t, v.Allow(id, vault.PermEncrypt))
					}
					l.signIn(t, fields, keyvault.WorkloadIdentity{ClientID: "app", TenantID: l.srv.TenantID, TokenFile: writeFile(t, federated("J1")+"\n")})
					require.NoError(t, l.encrypt(t))
					asked := 0
					for _, r := range l.srv.Requests() {
						require.Contains(t, []string{v.Host(), sign.host}, r.Host)
						if r.Op == sign.op {
							asked++
							require.Equal(t, "https://"+suffix, r.Audience)
						}
					}
					require.Equal(t, 1, asked)
				})
			}
		}
	}
}

// Case A07: when a vault refuses a token for its audience, both audiences are
// named. The vault's own word counts more than a header, which others add too.
func TestAuth_RefusedAudienceIsNamed(t *testing.T) {
	for _, hsm := range []bool{false, true} {
		l := newLab(t, vault.Config{})
		v, own, parent := l.kv, "https://vault.azure.net", "https://azure.net"
		if hsm {
			v, own = l.srv.HSM("hsmlab"), "https://managedhsm.azure.net"
			require.NoError(t, v.ImportKey("k1", v2, testKey(t)))
		}
		l.ref = keyvault.Ref{Host: v.Host(), Name: "k1", Version: v2}
		l.signIn(t, map[string]any{"useManagedIdentityExtension": true}, keyvault.WorkloadIdentity{})
		challenge := vault.Fault{Op: vault.OpChallenge, Header: map[string]string{"WWW-Authenticate": `Bearer authorization="https://login.microsoftonline.com/` + l.srv.TenantID + `", resource="` + parent + `"`}}
		l.srv.AddFault(challenge)
		if !hsm {
			// The header stays wrong on the refusal, too.
			challenge.Op, challenge.Host = "", v.Host()
			l.srv.AddFault(challenge)
			e := failure(t, l.encrypt(t))
			require.Equal(t, keyvault.CredentialsRefused, e.Reason)
			require.Contains(t, e.Text, "AKV10022")
			require.Contains(t, e.Text, "it wants one for "+own+", the token was fetched for "+parent+";")
			continue
		}
		// A right header on the refusal is followed, so this one heals.
		require.NoError(t, l.encrypt(t))
		var audiences []string
		for _, r := range l.srv.Requests() {
			if r.Op == vault.OpIMDS {
				audiences = append(audiences, r.Audience)
			}
		}
		require.Equal(t, []string{parent, own}, audiences)
	}
}
