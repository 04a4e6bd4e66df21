package vault

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
)

// serveVault answers for one vault.
func (v *Vault) serve(w http.ResponseWriter, r *http.Request) {
	t := parseTarget(r.Method, r.URL.Path)
	authorization := r.Header.Get("Authorization")
	c := v.srv.newCall(r, v.host, t.op)
	c.Key, c.Version = t.key, t.version
	tok, refusal := v.authenticate(authorization)
	switch {
	case t.op == OpHealth:
	case authorization == "":
		// Which operation it will be is known again once there is a token.
		c.Op = OpChallenge
	case tok != nil:
		c.Principal = tok.clientID
	}
	v.srv.exchange(w, r, c, func() *reply {
		switch {
		case t.op == OpHealth:
			out := v.reply(http.StatusOK, struct{}{})
			out.header.Set("X-Ms-Keyvault-Network-Info", "conn_type=Ipv4;addr="+clientAddr(r)+";act_addr_fam=InterNetwork;")
			return out
		case refusal != nil:
			return v.failure(refusal)
		}
		if fault := v.authorize(tok, t.op, clientAddr(r)); fault != nil {
			return v.failure(fault)
		}
		if r.URL.Query().Get("api-version") == "" {
			return v.failure(badParameter("api-version must be specified"))
		}
		status, body, fault := v.do(t, r)
		if fault != nil {
			return v.failure(fault)
		}
		return v.reply(status, body)
	}, func(f Fault) *reply {
		out := faultReply(f, func(f Fault) []byte {
			if f.Status < 300 {
				return []byte("{}")
			}
			caller := "appid=unknown"
			if tok != nil {
				caller = tok.caller()
			}
			f.Key = strings.Trim(c.Key+"/"+c.Version, "/")
			e := standIn(f, c.Op, caller)
			if f.Code == "" || f.InnerCode == "" {
				e = e.on(v.hsm)
			}
			return e.body()
		})
		return v.dress(out)
	})
}

// do performs an authorized operation.
func (v *Vault) do(t target, r *http.Request) (int, any, *apiError) {
	switch t.op {
	case OpEncrypt, OpDecrypt, OpWrapKey, OpUnwrapKey:
		return v.doCrypt(t, r)
	case OpGet:
		ver := v.look(t.key, t.version)
		if ver == nil {
			return 0, nil, v.notFound(t)
		}
		return 200, v.bundle(t.key, ver), nil
	case OpList:
		return v.listVersions(t, r)
	case OpListKeys:
		return v.listKeys(r)
	case OpCreate, OpRotate, OpImport:
		return v.doCreate(t, r)
	case OpUpdate:
		return v.doUpdate(t, r)
	case OpDelete, OpGetDeleted, OpListDeleted, OpRecover, OpPurge:
		return v.doDeleted(t, r)
	}
	return 0, nil, &apiError{status: 404, code: "NotFound", message: "The requested resource does not exist."}
}

func (v *Vault) doCrypt(t target, r *http.Request) (int, any, *apiError) {
	var in struct {
		Alg   string  `json:"alg"`
		Value *string `json:"value"`
	}
	if fault := readJSON(r, &in); fault != nil {
		return 0, nil, fault
	}
	ver := v.look(t.key, t.version)
	if ver == nil {
		return 0, nil, v.notFound(t)
	}
	if in.Value == nil {
		return 0, nil, badParameter(textBadProperty)
	}
	value, err := decode(*in.Value)
	if err != nil {
		return 0, nil, badParameter(textBadProperty)
	}
	out, fault := v.crypt(t.op, ver, in.Alg, value)
	if fault != nil {
		return 0, nil, fault
	}
	return 200, map[string]string{"kid": v.KeyURL(t.key, ver.id), "value": encode(out)}, nil
}

func (v *Vault) notFound(t target) *apiError {
	id := strings.ToLower(t.key)
	if t.version != "" {
		id += "/" + t.version
	}
	return errKeyNotFound(id)
}

// reply is a good answer, failure an error, each with the service's headers.
func (v *Vault) reply(status int, body any) *reply { return v.dress(jsonReply(status, body)) }

func (v *Vault) failure(e *apiError) *reply {
	e = e.on(v.hsm)
	out := bodyReply(e.status, "application/json; charset=utf-8", e.body())
	return v.dress(out)
}

func (v *Vault) dress(out *reply) *reply {
	h := out.header
	if out.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", v.challenge())
	}
	h.Set("Cache-Control", "no-cache")
	h.Set("Date", v.now().UTC().Format(http.TimeFormat))
	h.Set("X-Ms-Request-Id", randomGUID())
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Strict-Transport-Security", "max-age=31536000;includeSubDomains")
	if v.hsm {
		h.Set("X-Ms-Server-Latency", "1")
	} else {
		h.Set("X-Ms-Keyvault-Region", location)
		h.Set("X-Ms-Keyvault-Service-Version", "1.9.0.0")
	}
	return out
}

func clientAddr(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// readJSON reads a body into in.
func readJSON(r *http.Request, in any) *apiError {
	b, err := io.ReadAll(r.Body)
	if err != nil || len(b) == 0 || json.Unmarshal(b, in) != nil {
		return badParameter(textBadProperty)
	}
	return nil
}
