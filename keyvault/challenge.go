package keyvault

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// A challenge is what a vault's 401 says about the token it wants.
type challenge struct {
	audience string // for example https://vault.azure.net
	tenant   string // directory ID; empty if the vault does not say
}

// scope is the audience in the form that token requests have.
func (c challenge) scope() string { return strings.TrimSuffix(c.audience, "/") + "/.default" }

// request is the token that the vault wants.
func (c challenge) request() TokenRequest {
	return TokenRequest{Scope: c.scope(), TenantID: c.tenant}
}

// readChallenge reads the WWW-Authenticate header of a vault's 401. The vault's
// host must lie inside the audience's domain: a token is for every vault of that
// domain, so it must never be fetched on the word of another one.
func readChallenge(host string, header http.Header) (challenge, error) {
	values := header.Values("WWW-Authenticate")
	if len(values) == 0 {
		return challenge{}, fmt.Errorf("%s answers 401 without a WWW-Authenticate header, so where to sign in is not known; a proxy may have answered in its place", host)
	}
	var params map[string]string
	for _, v := range values {
		if scheme, rest, _ := strings.Cut(strings.TrimSpace(v), " "); strings.EqualFold(scheme, "Bearer") {
			params = authParams(rest)
			break
		}
	}
	audience := params["scope"]
	if audience == "" {
		audience = params["resource"]
	}
	if audience == "" {
		return challenge{}, fmt.Errorf("%s answers 401 with a WWW-Authenticate header that names no resource; a proxy may have answered in its place", host)
	}
	audience = strings.TrimSuffix(audience, "/.default")
	u, err := url.Parse(audience)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return challenge{}, fmt.Errorf("%s asks for a token for something that is not an https URL; a proxy may have answered in its place", host)
	}
	if !strings.HasSuffix(strings.ToLower(host), "."+strings.ToLower(u.Hostname())) {
		return challenge{}, fmt.Errorf("%s asks for a token for %s, which is not its own domain: no token was requested or sent", host, shownHost(u))
	}
	c := challenge{audience: audience}
	// https://<sign-in host>/<tenant>: only the tenant is taken. Where to send
	// credentials is our own configuration's word.
	if a, err := url.Parse(params["authorization"]); err == nil {
		tenant, _, _ := strings.Cut(strings.TrimPrefix(a.Path, "/"), "/")
		if guidForm().MatchString(tenant) {
			c.tenant = strings.ToLower(tenant)
		}
	}
	return c, nil
}

// shownHost is the URL of a host without what may follow, if it has the form of one:
// it came from outside.
func shownHost(u *url.URL) string {
	if isHost(u.Hostname()) {
		return u.Scheme + "://" + u.Hostname()
	}
	return "another host"
}

// authParams reads name="value" pairs, separated by commas, spaces or both:
// Key Vault has written all of these.
func authParams(s string) map[string]string {
	params := map[string]string{}
	for s = strings.TrimLeft(s, " ,"); s != ""; s = strings.TrimLeft(s, " ,") {
		name, rest, ok := strings.Cut(s, "=")
		if !ok {
			break
		}
		var value string
		if strings.HasPrefix(rest, `"`) {
			value, s, ok = strings.Cut(rest[1:], `"`)
			if !ok {
				break
			}
		} else {
			end := strings.IndexAny(rest, " ,")
			if end < 0 {
				end = len(rest)
			}
			value, s = rest[:end], rest[end:]
		}
		name = strings.ToLower(strings.TrimSpace(name))
		if _, dup := params[name]; !dup {
			params[name] = value
		}
	}
	return params
}
