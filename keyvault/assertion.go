package keyvault

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// readAssertion reads a federated token. One that is cut short in its header or
// payload is not taken; the signature may have any length, so that only the
// directory can tell whether it is whole.
func readAssertion(path string) (assertion string, end time.Time, err error) {
	data, err := readFile(path, maxConfigSize)
	if err != nil {
		return "", time.Time{}, err
	}
	defer clear(data)
	assertion = string(bytes.TrimSpace(data))
	if assertion == "" {
		return "", time.Time{}, fmt.Errorf("%s: empty file", path)
	}
	claims := assertionClaims(assertion)
	if claims == nil {
		return "", time.Time{}, fmt.Errorf("%s: half written, or not a token: this must be three parts in base64url, joined by dots, of which the first two are JSON objects", path)
	}
	if exp, _ := claims["exp"].(float64); exp > 0 {
		end = time.Unix(int64(exp), 0)
	}
	return assertion, end, nil
}

// assertionClaims is the payload of a signed token in compact form; nil if the
// text has another form.
func assertionClaims(text string) map[string]any {
	parts := strings.Split(text, ".")
	if len(parts) != 3 || parts[2] == "" {
		return nil
	}
	if _, ok := base64URL(parts[2]); !ok || jsonObject(parts[0]) == nil {
		return nil
	}
	return jsonObject(parts[1])
}

// jsonObject is the object that a part holds; nil if it holds anything else.
func jsonObject(part string) map[string]any {
	data, ok := base64URL(part)
	var object map[string]any
	if !ok || json.Unmarshal(data, &object) != nil {
		return nil
	}
	return object
}

// base64URL decodes a part. The decoder would pass over the ends of lines, and
// the rest of an older file would count as a part of this one.
func base64URL(part string) ([]byte, bool) {
	data, err := base64.RawURLEncoding.DecodeString(part)
	return data, err == nil && !strings.ContainsAny(part, "\r\n")
}
