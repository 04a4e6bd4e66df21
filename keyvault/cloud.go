package keyvault

import (
	"fmt"
	"strings"
)

// A Cloud is one of Azure's separate installations. Sign-in host, vault names
// and token audience always come from the same one.
type Cloud struct {
	// Name is the canonical name, as azure.json files have it.
	Name string
	// Authority is the sign-in host's URL, with a final slash.
	Authority string
	// VaultSuffix and HSMSuffix follow the name of a vault or Managed HSM.
	VaultSuffix string
	HSMSuffix   string
}

// clouds is the table of the "Sovereign clouds" and "Key Vault DNS suffixes"
// pages. Tools disagree on the names, so each has its aliases.
var clouds = []struct {
	Cloud
	aliases []string
}{
	{
		Cloud{"AzurePublicCloud", "https://login.microsoftonline.com/", "vault.azure.net", "managedhsm.azure.net"},
		[]string{"", "AzureCloud", "AzurePublic"},
	},
	{
		Cloud{"AzureUSGovernmentCloud", "https://login.microsoftonline.us/", "vault.usgovcloudapi.net", "managedhsm.usgovcloudapi.net"},
		[]string{"AzureUSGovernment", "AzureGovernmentCloud", "AzureGovernment"},
	},
	{
		Cloud{"AzureChinaCloud", "https://login.chinacloudapi.cn/", "vault.azure.cn", "managedhsm.azure.cn"},
		[]string{"AzureChina"},
	},
}

// ParseCloud finds a cloud by name, without regard to case. The empty name is
// the public cloud.
func ParseCloud(name string) (Cloud, error) {
	var valid []string
	for _, c := range clouds {
		if strings.EqualFold(name, c.Name) {
			return c.Cloud, nil
		}
		for _, alias := range c.aliases {
			if strings.EqualFold(name, alias) {
				return c.Cloud, nil
			}
		}
		valid = append(valid, c.Name)
	}
	return Cloud{}, fmt.Errorf("%q is not a known cloud: use one of %s", name, strings.Join(valid, ", "))
}

// CloudOf finds the cloud that a vault's host belongs to. There are clouds that are not
// in the table.
func CloudOf(host string) (Cloud, bool) {
	_, domain, _ := strings.Cut(host, ".")
	for _, c := range clouds {
		if strings.EqualFold(domain, c.VaultSuffix) || strings.EqualFold(domain, c.HSMSuffix) {
			return c.Cloud, true
		}
	}
	return Cloud{}, false
}

// VaultHost is the DNS name of a vault or Managed HSM. The name keeps its case
// (see Ref.Host).
func (c Cloud) VaultHost(name string, managedHSM bool) string {
	if managedHSM {
		return name + "." + c.HSMSuffix
	}
	return name + "." + c.VaultSuffix
}
