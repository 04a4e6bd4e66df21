package keyvault

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// A dataPlaneFile is the identity file of ARO's hosted control planes: one
// managed identity, as the managed identity data plane hands it out. It has
// further fields, which are ignored.
type dataPlaneFile struct {
	ClientID     *string `json:"client_id"`
	TenantID     *string `json:"tenant_id"`
	ClientSecret *string `json:"client_secret"` // base64 of PKCS#12 without a password, or of PEM
	Endpoint     *string `json:"authentication_endpoint"`
	NotBefore    *string `json:"not_before"` // orders the versions of the file
	NotAfter     *string `json:"not_after"`
}

// readDataPlane takes the identity from its file. No text holds a value of the
// file but its sign-in host and times.
func (id *identity) readDataPlane(path string) error {
	data, err := readFile(path, maxConfigSize)
	if err != nil {
		return err
	}
	defer clear(data)
	var f dataPlaneFile
	if err := json.Unmarshal(data, &f); err != nil {
		return fmt.Errorf("%s: %w", path, withoutValue(data, err))
	}
	if err := id.take(f); err != nil {
		return prefixEach(path, err)
	}
	id.source = "tenant_id in " + path
	return nil
}

// withoutValue says where JSON is wrong; the parser's own text may quote the file.
func withoutValue(data []byte, err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return fmt.Errorf("%s must be text", wrong.Field)
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		line, column := position(data, syntax.Offset)
		return fmt.Errorf("line %d, column %d: not valid JSON", line, column)
	}
	return errors.New("not a JSON object")
}

// take checks the fields and copies them; all faults at once.
func (id *identity) take(f dataPlaneFile) error {
	var errs []error
	need := func(name string, value *string) string {
		if value == nil || *value == "" {
			errs = append(errs, fmt.Errorf("%s is missing", name))
			return ""
		}
		return *value
	}
	moment := func(name, value string) time.Time {
		t, err := time.Parse(time.RFC3339, value)
		if err != nil && value != "" {
			errs = append(errs, fmt.Errorf("%s is not a time such as 2017-03-01T14:11:00Z", name))
		}
		return t
	}
	id.client, id.tenant = need("client_id", f.ClientID), need("tenant_id", f.TenantID)
	if secret := need("client_secret", f.ClientSecret); secret != "" {
		var err error
		if id.certificate, err = decodeCertificate(secret); err != nil {
			errs = append(errs, fmt.Errorf("client_secret: %w", err))
		}
	}
	if id.authority = need("authentication_endpoint", f.Endpoint); id.authority != "" && !isAuthority(id.authority) {
		errs = append(errs, errors.New("authentication_endpoint is not the https URL of a sign-in host, without a path"))
	}
	id.notBefore = moment("not_before", need("not_before", f.NotBefore))
	if f.NotAfter != nil {
		id.expires = moment("not_after", *f.NotAfter)
		if id.expired() {
			errs = append(errs, fmt.Errorf("not_after: the identity has expired at %s", id.expires.UTC().Format(time.RFC3339)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if end := id.certificate.chain[0].NotAfter; id.expires.IsZero() || end.Before(id.expires) {
		id.expires = end
	}
	return nil
}

func decodeCertificate(secret string) (*clientCertificate, error) {
	data, err := base64.StdEncoding.DecodeString(secret)
	if err != nil {
		return nil, errors.New("not base64")
	}
	defer clear(data)
	c, err := parseCertificate(data, Secret{})
	if errors.Is(err, errPassword) {
		return nil, errors.New("the PKCS#12 file in it has a password")
	}
	return c, err
}

// isAuthority reports whether s can be signed in at. A path would be taken for
// the tenant.
func isAuthority(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme == "https" && u.Hostname() != "" && u.User == nil && (u.Path == "" || u.Path == "/") && !strings.ContainsAny(s, "?#")
}

// replaces reports whether id may take the place of the one that got the last
// token. An older version of the same identity may not: whoever writes the file has
// gone back, and the directory may have dropped that certificate.
func (id *identity) replaces(taken *identity) error {
	if taken == nil || taken.expired() || id.method != methodDataPlane || taken.method != methodDataPlane ||
		id.client != taken.client || id.tenant != taken.tenant || !id.notBefore.Before(taken.notBefore) {
		return nil
	}
	return fmt.Errorf("aadMSIDataPlaneIdentityPath: not_before, %s, is older than that of the identity in use, %s",
		id.notBefore.UTC().Format(time.RFC3339), taken.notBefore.UTC().Format(time.RFC3339))
}
