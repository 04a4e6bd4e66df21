package keyvault

import (
	"errors"
	"fmt"
	"strings"
)

// maxConfigSize bounds azure.json: real ones are below 4 KiB.
const maxConfigSize = 1 << 20

// An AzureConfig is what this package uses of an azure.json file. The file
// belongs to the cloud provider, so it has many other fields, which are ignored.
type AzureConfig struct {
	// CloudName is the field "cloud" as written; see Cloud.
	CloudName string
	// TenantID is the directory of the service principal.
	TenantID string
	// ClientID and ClientSecret, or ClientCertPath with ClientCertPassword,
	// are the service principal.
	ClientID           string
	ClientSecret       Secret
	ClientCertPath     string
	ClientCertPassword Secret
	// UseManagedIdentity takes the machine's identity; UserAssignedIdentityID
	// says which, by client ID or resource ID, and empty means the system's.
	UseManagedIdentity     bool
	UserAssignedIdentityID string
	// UseWorkloadIdentity exchanges the pod's service account token.
	UseWorkloadIdentity bool
	// MSIDataPlanePath is the identity file of ARO's hosted control planes.
	MSIDataPlanePath string

	path  string
	cloud Cloud
}

// A method is one of the ways to sign in.
type method string

const (
	methodWorkload    method = "workload identity"
	methodManaged     method = "managed identity"
	methodSecret      method = "client secret"
	methodCertificate method = "client certificate"
	methodDataPlane   method = "MSI data-plane identity"
)

// ReadConfig reads azure.json, written as JSON or YAML. Field names are matched
// without regard to case, because published examples disagree on it. All faults
// are reported at once; none of the texts holds a value of the file.
func ReadConfig(path string) (*AzureConfig, error) {
	data, err := readFile(path, maxConfigSize)
	if err != nil {
		return nil, err
	}
	fields, err := parseFields(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	cfg := &AzureConfig{path: path}
	if err := cfg.assign(fields); err != nil {
		return nil, prefixEach(path, err)
	}
	if err := cfg.validate(); err != nil {
		return nil, prefixEach(path, err)
	}
	return cfg, nil
}

// Cloud is the cloud that the file names, the public one if it names none.
func (c *AzureConfig) Cloud() Cloud {
	if c == nil || c.cloud.Name == "" {
		return clouds[0].Cloud
	}
	return c.cloud
}

// Method names the way to sign in, for logs.
func (c *AzureConfig) Method() string {
	m, _ := c.method()
	return string(m)
}

// CheckHost reports a vault that is in another cloud than the one to sign in to.
// Without a word about the cloud, ways to sign in that do not depend on it work in any.
func (c *AzureConfig) CheckHost(host string) error {
	is, ok := CloudOf(host)
	m, _ := c.method()
	if !ok || is.Name == c.Cloud().Name || c.CloudName == "" && (m == methodManaged || m == methodDataPlane) {
		return nil
	}
	return fmt.Errorf("%s is in %s, and the field cloud of azure.json means %s: mend one of them", host, is.Name, c.Cloud().Name)
}

// HoldsSecrets reports whether whoever reads the file can sign in by it.
func (c *AzureConfig) HoldsSecrets() bool {
	return !c.ClientSecret.IsZero() || !c.ClientCertPassword.IsZero()
}

// A ConfigFile is a file that a field of azure.json names.
type ConfigFile struct{ Field, Path string }

// Files are the files that azure.json names, whether they are used or not.
func (c *AzureConfig) Files() (all []ConfigFile) {
	for _, f := range []ConfigFile{{"aadClientCertPath", c.ClientCertPath}, {"aadMSIDataPlaneIdentityPath", c.MSIDataPlanePath}} {
		if f.Path != "" {
			all = append(all, f)
		}
	}
	return all
}

// Unused says which credentials in the file are not used, because another comes
// first. Beside an identity of the machine or pod they are none to speak of: files
// of the cloud provider have placeholders there.
func (c *AzureConfig) Unused() (warnings []string) {
	m, _ := c.method()
	if m == methodSecret && c.ClientCertPath != "" {
		warnings = append(warnings, c.path+": aadClientCertPath is not used: aadClientSecret is there and comes first")
	}
	if (m == methodSecret || m == methodCertificate) && c.MSIDataPlanePath != "" {
		warnings = append(warnings, c.path+": aadMSIDataPlaneIdentityPath is not used: the "+string(m)+" is there and comes first")
	}
	return warnings
}

// guidForm is a client, object or tenant ID.
var guidForm = pattern(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)

// validate checks what can be checked without the network.
func (c *AzureConfig) validate() error {
	var errs []error
	cloud, err := ParseCloud(c.CloudName)
	if err != nil {
		errs = append(errs, fmt.Errorf("cloud: %w", err))
	}
	c.cloud = cloud
	for _, f := range []struct{ name, value, find string }{
		{"tenantId", c.TenantID, "az account show --query tenantId"},
		{"aadClientId", c.ClientID, "az ad app list --query '[].[displayName, appId]'"},
	} {
		if strings.ContainsAny(f.value, "<>") {
			errs = append(errs, fmt.Errorf("%s: is a placeholder in angle brackets: put the ID itself in its place (%s)", f.name, f.find))
		}
	}
	if id := c.UserAssignedIdentityID; id != "" && !guidForm().MatchString(id) && !isResourceID(id) {
		errs = append(errs, errors.New("userAssignedIdentityID: write a client ID (a GUID) or a resource ID (/subscriptions/.../userAssignedIdentities/<name>)"))
	}
	if _, err := c.method(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// method chooses the way to sign in, in the order of the existing plugins.
func (c *AzureConfig) method() (method, error) {
	switch {
	case c.UseWorkloadIdentity:
		return methodWorkload, nil
	case c.UseManagedIdentity:
		return methodManaged, nil
	case strings.EqualFold(c.ClientID, "msi"):
		return "", errors.New(`aadClientId: "msi" is the placeholder of managed identity: set useManagedIdentityExtension to true`)
	case !c.ClientSecret.IsZero():
		return methodSecret, c.needPrincipal("aadClientSecret")
	case c.ClientCertPath != "":
		return methodCertificate, c.needPrincipal("aadClientCertPath")
	case c.MSIDataPlanePath != "":
		return methodDataPlane, nil
	case c.UserAssignedIdentityID != "":
		return "", errors.New("userAssignedIdentityID is set but useManagedIdentityExtension is not true")
	case c.ClientID != "":
		return "", errors.New("aadClientId is set, but neither aadClientSecret nor aadClientCertPath")
	}
	return "", errors.New("no credential: set useWorkloadIdentityExtension or useManagedIdentityExtension to true, or aadClientId with aadClientSecret or aadClientCertPath, or aadMSIDataPlaneIdentityPath")
}

func (c *AzureConfig) needPrincipal(with string) error {
	var errs []error
	if c.ClientID == "" {
		errs = append(errs, fmt.Errorf("aadClientId is missing; %s needs it", with))
	}
	if c.TenantID == "" {
		errs = append(errs, fmt.Errorf("tenantId is missing; %s needs it", with))
	}
	return errors.Join(errs...)
}

func isResourceID(id string) bool {
	return strings.HasPrefix(strings.ToLower(id), "/subscriptions/") &&
		strings.Contains(strings.ToLower(id), "/userassignedidentities/")
}

// prefixEach puts the file's name before every line of a joined error, since
// each is read on its own.
func prefixEach(path string, err error) error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return fmt.Errorf("%s: %w", path, err)
	}
	var errs []error
	for _, e := range joined.Unwrap() {
		errs = append(errs, prefixEach(path, e))
	}
	return errors.Join(errs...)
}
