package vault

import (
	"fmt"
	"net/http"
	"strings"
)

// serveIMDS answers for the instance metadata service, over plain HTTP.
func (s *Server) serveIMDS(w http.ResponseWriter, r *http.Request) {
	op := OpOther
	if strings.TrimSuffix(r.URL.Path, "/") == "/metadata/identity/oauth2/token" && r.Method == http.MethodGet {
		op = OpIMDS
	}
	c := s.newCall(r, metadataHost, op)
	s.exchange(w, r, c, func() *reply {
		switch {
		case op != OpIMDS:
			return jsonReply(http.StatusNotFound, map[string]string{"error": "not_found"})
		case !strings.EqualFold(r.Header.Get("Metadata"), "true"):
			return imdsError("Required metadata header not specified")
		case r.Header.Get("X-Forwarded-For") != "":
			return imdsError("Request contains a forbidden header")
		}
		return s.managedIdentity(r, c)
	}, imdsFault)
}

// serveIdentity answers in the style of App Service, at the admin address.
func (s *Server) serveIdentity(w http.ResponseWriter, r *http.Request) {
	c := s.newCall(r, "identity", OpIdentity)
	s.exchange(w, r, c, func() *reply {
		if r.Header.Get("X-Identity-Header") != s.identityHeader {
			return jsonReply(http.StatusUnauthorized, map[string]any{"statusCode": 401, "message": "The identity header is missing or wrong."})
		}
		return s.managedIdentity(r, c)
	}, imdsFault)
}

func imdsFault(f Fault) *reply {
	return faultReply(f, func(f Fault) []byte {
		name, text := f.Code, f.Message
		if name == "" {
			name = "temporarily_unavailable"
		}
		if text == "" {
			text = "The fault says so."
		}
		return jsonReply(f.Status, map[string]string{"error": name, "error_description": text}).body
	})
}

func imdsError(text string) *reply {
	return jsonReply(http.StatusBadRequest, map[string]string{"error": "invalid_request", "error_description": text})
}

func (s *Server) managedIdentity(r *http.Request, c *call) *reply {
	q := r.URL.Query()
	resource := q.Get("resource")
	clientID, objectID := q.Get("client_id"), q.Get("object_id")
	if objectID == "" {
		objectID = q.Get("principal_id")
	}
	resourceID := q.Get("msi_res_id")
	if resourceID == "" {
		resourceID = q.Get("mi_res_id")
	}
	var chosen []string
	for _, name := range []string{"client_id", "object_id", "principal_id", "msi_res_id", "mi_res_id"} {
		if value := q.Get(name); value != "" {
			chosen = append(chosen, name+"="+value)
		}
	}
	s.count.note(c, func(q *Request) { q.Audience, q.Identity = resource, strings.Join(chosen, "&") })
	switch {
	case q.Get("api-version") == "":
		return imdsError("Required query variable 'api-version' is missing")
	case resource == "":
		return imdsError("Required query variable 'resource' is missing")
	}
	id, err := s.dir.identity(clientID, objectID, resourceID)
	if err != nil {
		return imdsError(err.Error())
	}
	now := s.now()
	// A resource that is not a vault's is honoured too: the vault must refuse the token.
	t := s.dir.issue(id.ClientID, id.ObjectID, s.TenantID, resource, now)
	s.count.issued()
	s.count.note(c, func(q *Request) { q.Principal = id.ClientID })
	left := fmt.Sprint(int(t.expires.Sub(now).Seconds()))
	answer := map[string]string{
		"access_token": t.text, "client_id": id.ClientID, "expires_in": left, "ext_expires_in": left,
		"expires_on": fmt.Sprint(t.expires.Unix()), "not_before": fmt.Sprint(now.Unix()), "resource": resource, "token_type": "Bearer",
	}
	if objectID != "" {
		answer["object_id"] = id.ObjectID
	}
	if resourceID != "" {
		answer["msi_res_id"] = id.ResourceID
	}
	return jsonReply(http.StatusOK, answer)
}
