package vault

import (
	"net/http"
	"slices"
	"strings"
)

// An Op is an operation of the service. The list is closed.
type Op string

// The operations of a vault or Managed HSM.
const (
	OpEncrypt     Op = "encrypt"
	OpDecrypt     Op = "decrypt"
	OpWrapKey     Op = "wrapkey"
	OpUnwrapKey   Op = "unwrapkey"
	OpGet         Op = "get"      // a key's current version or a named one
	OpList        Op = "list"     // the versions of a key
	OpListKeys    Op = "listkeys" // the keys of a vault
	OpCreate      Op = "create"
	OpImport      Op = "import"
	OpUpdate      Op = "update"
	OpRotate      Op = "rotate"
	OpDelete      Op = "delete"
	OpGetDeleted  Op = "getdeleted"
	OpListDeleted Op = "listdeleted"
	OpRecover     Op = "recover"
	OpPurge       Op = "purge"
	OpChallenge   Op = "challenge" // any request without a token
	OpHealth      Op = "healthstatus"
	OpOther       Op = "other" // a path or method that does not exist
)

// The operations of the token endpoints.
const (
	OpToken     Op = "token"     // client credentials to a token
	OpOpenID    Op = "openid"    // openid-configuration
	OpDiscovery Op = "discovery" // instance discovery
	OpIMDS      Op = "imds"      // the instance metadata service
	OpIdentity  Op = "identity"  // the App Service style of the same
)

var vaultOps = []Op{
	OpEncrypt, OpDecrypt, OpWrapKey, OpUnwrapKey, OpGet, OpList, OpListKeys, OpCreate, OpImport, OpUpdate, OpRotate,
	OpDelete, OpGetDeleted, OpListDeleted, OpRecover, OpPurge, OpChallenge, OpHealth, OpOther,
}

var tokenOps = []Op{OpToken, OpOpenID, OpDiscovery, OpIMDS, OpIdentity}

func (o Op) valid() bool { return slices.Contains(vaultOps, o) || slices.Contains(tokenOps, o) }

// ofToken reports whether o is asked for a token, not of a vault.
func (o Op) ofToken() bool { return slices.Contains(tokenOps, o) }

// A target is what a vault's path names.
type target struct {
	op           Op
	key, version string
}

// parseTarget reads a request line. Microsoft's clients send a trailing slash
// or a double one where the version is empty, and verbs in lower case; the
// service does not mind either, nor the case.
func parseTarget(method, path string) target {
	var seg []string
	for s := range strings.SplitSeq(path, "/") {
		if s != "" {
			seg = append(seg, s)
		}
	}
	other := target{op: OpOther}
	if len(seg) == 0 {
		return other
	}
	switch strings.ToLower(seg[0]) {
	case "healthstatus":
		return target{op: OpHealth}
	case "keys":
		return keyTarget(method, seg[1:], other)
	case "deletedkeys":
		return deletedTarget(method, seg[1:], other)
	}
	return other
}

func keyTarget(method string, seg []string, other target) target {
	if len(seg) == 0 {
		if method == http.MethodGet {
			return target{op: OpListKeys}
		}
		return other
	}
	t := target{key: seg[0]}
	rest := seg[1:]
	switch method {
	case http.MethodGet:
		t.op = OpGet
		if len(rest) == 1 && strings.EqualFold(rest[0], "versions") {
			t.op = OpList
			rest = nil
		}
	case http.MethodPut:
		t.op = OpImport
	case http.MethodPatch:
		t.op = OpUpdate
	case http.MethodDelete:
		t.op = OpDelete
	case http.MethodPost:
		if len(rest) == 0 {
			return other
		}
		t.op = Op(strings.ToLower(rest[len(rest)-1]))
		if !slices.Contains([]Op{OpEncrypt, OpDecrypt, OpWrapKey, OpUnwrapKey, OpCreate, OpRotate}, t.op) {
			return other
		}
		rest = rest[:len(rest)-1]
	default:
		return other
	}
	if len(rest) > 1 {
		return other
	}
	if len(rest) == 1 {
		t.version = strings.ToLower(rest[0])
	}
	return t
}

func deletedTarget(method string, seg []string, other target) target {
	switch {
	case len(seg) == 0 && method == http.MethodGet:
		return target{op: OpListDeleted}
	case len(seg) == 1 && method == http.MethodGet:
		return target{op: OpGetDeleted, key: seg[0]}
	case len(seg) == 1 && method == http.MethodDelete:
		return target{op: OpPurge, key: seg[0]}
	case len(seg) == 2 && method == http.MethodPost && strings.EqualFold(seg[1], "recover"):
		return target{op: OpRecover, key: seg[0]}
	}
	return other
}
