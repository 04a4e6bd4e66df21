package vault

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strings"
)

// A cloud is one set of DNS suffixes that belong together.
type cloud struct {
	login []string // hosts of the token endpoint, the one in challenges first
	vault string
	hsm   string
}

// Source: Azure's sovereign cloud pages; the first is the public cloud.
var clouds = []cloud{
	{[]string{"login.microsoftonline.com"}, "vault.azure.net", "managedhsm.azure.net"},
	{[]string{"login.microsoftonline.us"}, "vault.usgovcloudapi.net", "managedhsm.usgovcloudapi.net"},
	{[]string{"login.chinacloudapi.cn", "login.partner.microsoftonline.cn"}, "vault.azure.cn", "managedhsm.azure.cn"},
}

// metadataHost is where Azure's virtual machines find their identity.
const metadataHost = "169.254.169.254"

// splitHost takes a vault's host name apart.
func splitHost(host string) (name string, c cloud, hsm, ok bool) {
	name, suffix, _ := strings.Cut(host, ".")
	for _, c := range clouds {
		switch suffix {
		case c.vault:
			return name, c, false, name != ""
		case c.hsm:
			return name, c, true, name != ""
		}
	}
	return "", cloud{}, false, false
}

// regionalLogin is the domain of the public cloud's token endpoints of one
// region, such as westus2.login.microsoft.com: managed identities are sent there.
const regionalLogin = ".login.microsoft.com"

// loginCloud is the cloud that a token endpoint's host belongs to.
func loginCloud(host string) (cloud, bool) {
	if region, ok := strings.CutSuffix(host, regionalLogin); ok && vaultNameForm.MatchString(region) {
		return clouds[0], true
	}
	i := slices.IndexFunc(clouds, func(c cloud) bool { return slices.Contains(c.login, host) })
	if i < 0 {
		return cloud{}, false
	}
	return clouds[i], true
}

func isLogin(host string) bool {
	_, ok := loginCloud(host)
	return ok
}

// mapped reports whether a name belongs to the service that is emulated.
func mapped(host string) bool {
	_, _, _, isVault := splitHost(host)
	return isVault || isLogin(host) || host == metadataHost
}

// knows reports whether tokens for an audience are given out in this cloud.
func (c cloud) knows(resource string) bool {
	return resource == "https://"+c.vault || resource == "https://"+c.hsm
}

// hostOnly strips the port and folds the case.
func hostOnly(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		hostport = host
	}
	return strings.ToLower(strings.Trim(hostport, "[]"))
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

func randomText(n int) string { return base64.RawURLEncoding.EncodeToString(randomBytes(n)) }

func randomVersion() string { return hex.EncodeToString(randomBytes(16)) }

func randomGUID() string {
	b := randomBytes(16)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
