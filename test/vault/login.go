package vault

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A tokenError is an error body of the token endpoint.
type tokenError struct {
	status int
	name   string // OAuth's name for it
	code   int    // AADSTS number
	text   string
}

func (e *tokenError) reply(now time.Time) *reply {
	trace, correlation := randomGUID(), randomGUID()
	return jsonReply(e.status, map[string]any{
		"error": e.name,
		"error_description": fmt.Sprintf("AADSTS%d: %s Trace ID: %s Correlation ID: %s Timestamp: %s",
			e.code, e.text, trace, correlation, now.UTC().Format("2006-01-02 15:04:05Z")),
		"error_codes": []int{e.code}, "timestamp": now.UTC().Format("2006-01-02 15:04:05Z"),
		"trace_id": trace, "correlation_id": correlation,
		"error_uri": fmt.Sprintf("https://login.microsoftonline.com/error?code=%d", e.code),
	})
}

// serveLogin answers for a token endpoint's host.
func (s *Server) serveLogin(w http.ResponseWriter, r *http.Request, host string) {
	tenant, rest, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	op := OpOther
	switch {
	case r.Method == http.MethodGet && strings.EqualFold(strings.Trim(r.URL.Path, "/"), "common/discovery/instance"):
		op = OpDiscovery
	case r.Method == http.MethodGet && strings.HasSuffix(rest, ".well-known/openid-configuration"):
		op = OpOpenID
	case r.Method == http.MethodPost && (rest == "oauth2/v2.0/token" || rest == "oauth2/token"):
		op = OpToken
	}
	c := s.newCall(r, host, op)
	s.exchange(w, r, c, func() *reply {
		var out *reply
		switch op {
		case OpDiscovery:
			out = discovery()
		case OpOpenID:
			out = s.openID(host, tenant)
		case OpToken:
			out = s.clientCredentials(r, c, host, tenant, rest == "oauth2/v2.0/token")
		default:
			out = jsonReply(http.StatusNotFound, map[string]string{"error": "not_found"})
		}
		out.header.Set("X-Ms-Request-Id", randomGUID())
		out.header.Set("Cache-Control", "no-store, no-cache")
		return out
	}, func(f Fault) *reply {
		return faultReply(f, func(f Fault) []byte { return loginFault(f, s.now()) })
	})
}

// loginFault is the body of a fault at the token endpoint: Code is OAuth's
// name for it, InnerCode an AADSTS number.
func loginFault(f Fault, now time.Time) []byte {
	e := &tokenError{status: f.Status, name: f.Code, code: 90033, text: f.Message}
	fmt.Sscanf(strings.TrimPrefix(f.InnerCode, "AADSTS"), "%d", &e.code) // a code that is no number leaves 90033
	if e.name == "" {
		e.name = map[int]string{400: "invalid_request", 401: "invalid_client", 403: "unauthorized_client"}[f.Status]
	}
	if e.name == "" {
		e.name = "temporarily_unavailable"
	}
	if e.text == "" {
		e.text = "A transient error has occurred. Please try again."
	}
	return e.reply(now).body
}

// discovery says which login hosts are Microsoft's.
func discovery() *reply {
	var metadata []map[string]any
	for _, c := range clouds {
		metadata = append(metadata, map[string]any{"preferred_network": c.login[0], "preferred_cache": c.login[0], "aliases": c.login})
	}
	return jsonReply(http.StatusOK, map[string]any{
		"tenant_discovery_endpoint": "https://login.microsoftonline.com/common/v2.0/.well-known/openid-configuration",
		"api-version":               "1.1", "metadata": metadata,
	})
}

func (s *Server) openID(host, tenant string) *reply {
	if !s.dir.tenantExists(tenant) {
		return errTenant(tenant).reply(s.now())
	}
	base := "https://" + host + "/" + tenant
	return jsonReply(http.StatusOK, map[string]any{
		"issuer":                                base + "/v2.0",
		"authorization_endpoint":                base + "/oauth2/v2.0/authorize",
		"token_endpoint":                        base + "/oauth2/v2.0/token",
		"jwks_uri":                              base + "/discovery/v2.0/keys",
		"token_endpoint_auth_methods_supported": []string{"client_secret_post", "private_key_jwt"},
		"response_types_supported":              []string{"token"},
		"subject_types_supported":               []string{"pairwise"},
	})
}

func errTenant(tenant string) *tokenError {
	return &tokenError{400, "invalid_tenant", 90002, "Tenant '" + tenant + "' not found. Check to make sure you have the correct tenant ID and are signing into the correct cloud."}
}

// clientCredentials exchanges a secret or an assertion for a token.
func (s *Server) clientCredentials(r *http.Request, c *call, host, tenant string, v2 bool) *reply {
	now := s.now()
	fail := func(status int, name string, code int, text string) *reply {
		return (&tokenError{status, name, code, text}).reply(now)
	}
	if err := r.ParseForm(); err != nil {
		return fail(400, "invalid_request", 900144, "The request body could not be read.")
	}
	form := r.PostForm
	clientID := form.Get("client_id")
	resource := resourceOf(form, v2)
	s.count.note(c, func(q *Request) { q.Principal, q.Audience = clientID, resource })
	for _, field := range []string{"grant_type", "client_id"} {
		if form.Get(field) == "" {
			return fail(400, "invalid_request", 900144, "The request body must contain the following parameter: '"+field+"'.")
		}
	}
	if form.Get("grant_type") != "client_credentials" {
		return fail(400, "unsupported_grant_type", 70003, "The app requested an unsupported grant type '"+form.Get("grant_type")+"'.")
	}
	if !s.dir.tenantExists(tenant) {
		return errTenant(tenant).reply(now)
	}
	p := s.dir.principal(clientID)
	if p == nil || !strings.EqualFold(p.TenantID, tenant) {
		return fail(400, "unauthorized_client", 700016, "Application with identifier '"+clientID+"' was not found in the directory '"+tenant+"'.")
	}
	switch assertion := form.Get("client_assertion"); {
	case assertion != "":
		if form.Get("client_assertion_type") != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" {
			return fail(400, "invalid_request", 900144, "The request body must contain the following parameter: 'client_assertion_type'.")
		}
		if e := checkAssertion(p, assertion, "https://"+host+"/"+tenant, now); e != nil {
			return e.reply(now)
		}
	case form.Get("client_secret") == "":
		return fail(401, "invalid_client", 7000218, "The request body must contain the following parameter: 'client_assertion' or 'client_secret'.")
	case !slices.Contains(p.Secrets, form.Get("client_secret")):
		return fail(401, "invalid_client", 7000215, "Invalid client secret provided. Ensure the secret being sent in the request is the client secret value, not the client secret ID, for a secret added to app '"+clientID+"'.")
	}
	if c, _ := loginCloud(host); !c.knows(resource) {
		return fail(400, "invalid_resource", 500011, "The resource principal named "+resource+" was not found in the tenant.")
	}
	t := s.dir.issue(p.ClientID, p.ObjectID, p.TenantID, resource, now)
	s.count.issued()
	left := int(t.expires.Sub(now).Seconds())
	if v2 {
		return jsonReply(http.StatusOK, map[string]any{"token_type": "Bearer", "expires_in": left, "ext_expires_in": left, "access_token": t.text})
	}
	return jsonReply(http.StatusOK, map[string]any{
		"token_type": "Bearer", "expires_in": fmt.Sprint(left), "ext_expires_in": fmt.Sprint(left),
		"expires_on": fmt.Sprint(t.expires.Unix()), "not_before": fmt.Sprint(now.Unix()), "resource": resource, "access_token": t.text,
	})
}

// resourceOf is the audience that a request is for.
func resourceOf(form url.Values, v2 bool) string {
	if !v2 {
		return form.Get("resource")
	}
	for scope := range strings.FieldsSeq(form.Get("scope")) {
		if resource, ok := strings.CutSuffix(scope, "/.default"); ok {
			return resource
		}
	}
	return form.Get("scope")
}
