package vault

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Principal is who may ask for tokens.
type Principal struct {
	ClientID string `json:"clientId"`
	TenantID string `json:"tenantId"` // default: the server's
	ObjectID string `json:"objectId"` // default: made up
	// Secrets are the client secrets that are good now.
	Secrets []string `json:"secrets"`
	// Certificates are those whose key may sign an assertion.
	Certificates []*x509.Certificate `json:"-"`
	// Issuers are those whose certificates may do so too, if the assertion
	// brings its certificate along (x5c): so do managed identities.
	Issuers []*x509.Certificate `json:"-"`
	// Assertions are the federated tokens that are accepted as they stand.
	Assertions []string `json:"assertions"`
}

// An Identity is a managed identity of the machine, for the metadata service.
type Identity struct {
	ClientID   string `json:"clientId"`
	ObjectID   string `json:"objectId"`
	ResourceID string `json:"resourceId"`
	// System marks the one that is meant when none is named.
	System bool `json:"system"`
}

// A token is one that was issued.
type token struct {
	text, clientID, objectID, tenantID, audience string
	issued, expires                              time.Time
}

// caller is how error texts name who called.
func (t *token) caller() string {
	return "appid=" + t.clientID + ";oid=" + t.objectID + ";iss=https://sts.windows.net/" + t.tenantID + "/"
}

// directory knows principals, identities and tokens. It is safe for
// concurrent use.
type directory struct {
	mu         sync.RWMutex
	principals map[string]*Principal // by lower-case client ID
	identities []Identity
	tokens     map[string]*token // by text
	lifetime   time.Duration
}

func newDirectory(lifetime time.Duration) *directory {
	return &directory{principals: map[string]*Principal{}, tokens: map[string]*token{}, lifetime: lifetime}
}

// principal returns a copy of a principal, nil if there is none.
func (d *directory) principal(clientID string) *Principal {
	d.mu.RLock()
	defer d.mu.RUnlock()
	p := d.principals[strings.ToLower(clientID)]
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

func (d *directory) tenantExists(tenantID string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, p := range d.principals {
		if strings.EqualFold(p.TenantID, tenantID) {
			return true
		}
	}
	return false
}

func (d *directory) put(p Principal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.principals[strings.ToLower(p.ClientID)] = &p
}

// issue makes a token. It looks like a JWT, but only its text counts.
func (d *directory) issue(clientID, objectID, tenantID, audience string, now time.Time) *token {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &token{
		clientID: clientID, objectID: objectID, tenantID: tenantID, audience: audience,
		issued: now, expires: now.Add(d.lifetime),
	}
	claims, err := json.Marshal(map[string]any{
		"aud": audience, "iss": "https://sts.windows.net/" + tenantID + "/", "iat": now.Unix(), "nbf": now.Unix(),
		"exp": t.expires.Unix(), "appid": clientID, "oid": objectID, "sub": objectID, "tid": tenantID, "uti": randomText(12), "ver": "1.0",
	})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	t.text = strings.Join([]string{encode([]byte(`{"typ":"JWT","alg":"RS256","kid":"emulator"}`)), encode(claims), randomText(64)}, ".")
	if len(d.tokens) > 1000 {
		for text, old := range d.tokens {
			if now.Sub(old.expires) > time.Hour {
				delete(d.tokens, text)
			}
		}
	}
	d.tokens[t.text] = t
	return t
}

func (d *directory) token(text string) *token {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.tokens[text]
}

// revoke forgets tokens, of one client ID or of all for an empty one.
func (d *directory) revoke(clientID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for text, t := range d.tokens {
		if clientID == "" || strings.EqualFold(clientID, t.clientID) {
			delete(d.tokens, text)
		}
	}
}

func (d *directory) setLifetime(l time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lifetime = l
}

func (d *directory) setIdentities(list []Identity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.identities = slices.Clone(list)
}

// An identityError is the service's own text.
type identityError string

func (e identityError) Error() string { return string(e) }

const (
	errSeveralIdentities identityError = "Multiple user assigned identities exist, please specify the clientId / resourceId of the identity in the token request"
	errNoIdentity        identityError = "Identity not found"
)

// identity finds the identity that a query names, or the one there is.
func (d *directory) identity(clientID, objectID, resourceID string) (Identity, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if clientID == "" && objectID == "" && resourceID == "" {
		for _, id := range d.identities {
			if id.System {
				return id, nil
			}
		}
		switch len(d.identities) {
		case 0:
			return Identity{}, errNoIdentity
		case 1:
			return d.identities[0], nil
		}
		return Identity{}, errSeveralIdentities
	}
	for _, id := range d.identities {
		if clientID != "" && strings.EqualFold(clientID, id.ClientID) ||
			objectID != "" && strings.EqualFold(objectID, id.ObjectID) ||
			resourceID != "" && strings.EqualFold(resourceID, id.ResourceID) {
			return id, nil
		}
	}
	return Identity{}, errNoIdentity
}

// challenge is what a vault answers to a call without a good token.
func (v *Vault) challenge() string {
	return fmt.Sprintf(`Bearer authorization="https://%s/%s", resource="%s"`, v.cloud.login[0], v.tenantID(), v.Audience())
}

// Audience is what the vault wants tokens to be for.
func (v *Vault) Audience() string {
	if v.hsm {
		return "https://" + v.cloud.hsm
	}
	return "https://" + v.cloud.vault
}

func (v *Vault) tenantID() string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.tenant
}

// authenticate reads an Authorization header. The token is known even where
// it is refused, as long as it was issued here.
func (v *Vault) authenticate(header string) (*token, *apiError) {
	scheme, text, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") || text == "" {
		return nil, errUnauthorized(textNoToken)
	}
	t := v.srv.dir.token(strings.TrimSpace(text))
	switch {
	case t == nil:
		return nil, errUnauthorized(textBadToken)
	case !v.srv.now().Before(t.expires):
		return t, errUnauthorized(textTokenExpired)
	case t.audience != v.Audience():
		return t, errUnauthorized(fmt.Sprintf(textBadAudience, v.Audience(), t.audience))
	case !strings.EqualFold(t.tenantID, v.tenantID()):
		return t, errUnauthorized(fmt.Sprintf(textBadIssuer, v.tenantID(), t.tenantID))
	}
	return t, nil
}
