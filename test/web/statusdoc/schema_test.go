package statusdoc_test

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/web/statusdoc"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func readSchema(t *testing.T) map[string]any {
	t.Helper()
	data, err := os.ReadFile("../../../docs/status.schema.json")
	require.NoError(t, err)
	var schema map[string]any
	require.NoError(t, json.Unmarshal(data, &schema))
	return schema
}

func compile(t *testing.T, schema map[string]any) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat() // of times
	require.NoError(t, c.AddResource("status.schema.json", schema))
	s, err := c.Compile("status.schema.json")
	require.NoError(t, err)
	return s
}

// closed is a schema that takes no field that it does not describe.
func closed(schema map[string]any) map[string]any {
	for _, v := range schema {
		if sub, ok := v.(map[string]any); ok {
			closed(sub)
		}
	}
	if _, ok := schema["properties"].(map[string]any); ok && schema["type"] == "object" {
		schema["additionalProperties"] = false
	}
	return schema
}

// plain is a document as a reader gets it.
func plain(t *testing.T, d *status.Document) map[string]any {
	t.Helper()
	data, err := json.Marshal(d)
	require.NoError(t, err)
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	return v.(map[string]any)
}

// Documents of every state are what the schema says, and nothing in them is without a
// description.
func TestSchema_TakesWhatIsWritten(t *testing.T) {
	strict := compile(t, closed(readSchema(t)))
	for phase, d := range statusdoc.Samples(now) {
		require.NoError(t, strict.Validate(plain(t, d)), phase)
		for _, reason := range keyvault.Reasons() {
			if d.Failure != nil && reason != keyvault.Success {
				d.Failure.Reason = string(reason)
				require.NoError(t, strict.Validate(plain(t, d)), reason)
			}
		}
	}
}

// Readers have to bear what is added later, and are told of what is wrong.
func TestSchema_GrowsAndRefuses(t *testing.T) {
	s := compile(t, readSchema(t))
	for name, tc := range map[string]struct {
		change func(d map[string]any)
		good   bool
	}{
		"a new field":                {func(d map[string]any) { d["new"] = 1 }, true},
		"a new field further in":     {func(d map[string]any) { d["keys"].([]any)[0].(map[string]any)["new"] = 1 }, true},
		"another kind":               {func(d map[string]any) { d["kind"] = "Pod" }, false},
		"another version":            {func(d map[string]any) { d["apiVersion"] = "azure-kms-plugin/v2" }, false},
		"no time":                    {func(d map[string]any) { delete(d, "observedTime") }, false},
		"a time that is none":        {func(d map[string]any) { d["observedTime"] = "noon" }, false},
		"a phase that there is not":  {func(d map[string]any) { d["phase"] = "Fine" }, false},
		"a reason that there is not": {func(d map[string]any) { d["failure"].(map[string]any)["reason"] = "Bored" }, false},
		"a missing condition":        {func(d map[string]any) { d["conditions"] = d["conditions"].([]any)[1:] }, false},
		"no list of keys":            {func(d map[string]any) { d["keys"] = nil }, false},
	} {
		d := plain(t, statusdoc.Samples(now)[status.Lost])
		tc.change(d)
		require.Equal(t, tc.good, s.Validate(d) == nil, name)
	}
}

// The schema and the Go types have the same fields, and agree on which may be left out.
func TestSchema_HasTheFieldsOfTheDocument(t *testing.T) {
	schema := readSchema(t)
	defs := schema["$defs"].(map[string]any)
	seen := map[string]bool{"time": true, "reason": true}
	var walk func(typ reflect.Type, s map[string]any, name string)
	walk = func(typ reflect.Type, s map[string]any, name string) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() {
			return
		}
		props := s["properties"].(map[string]any)
		var fields, required []string
		for f := range typ.Fields() {
			field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			require.NotEmpty(t, field, "%s.%s has no name in JSON", name, f.Name)
			fields = append(fields, field)
			if options == "" {
				required = append(required, field)
			}
			prop, ok := props[field].(map[string]any)
			require.True(t, ok, "%s.%s is not in the schema", name, field)
			ref, _ := prop["$ref"].(string)
			if items, ok := prop["items"].(map[string]any); ok {
				ref, _ = items["$ref"].(string)
			}
			def := strings.TrimPrefix(ref, "#/$defs/")
			if next, ok := defs[def].(map[string]any); ok {
				seen[def] = true
				walk(f.Type, next, def)
			} else {
				require.NotEmpty(t, prop["description"], "%s.%s is not described", name, field)
			}
		}
		for p := range props {
			require.Contains(t, fields, p, "%s has no such field", name)
		}
		require.ElementsMatch(t, required, s["required"], "%s: what may be left out", name)
	}
	walk(reflect.TypeFor[status.Document](), schema, "document")
	for def := range defs {
		require.True(t, seen[def], "nothing refers to %s", def)
	}
}

// Closed lists are the same in the schema and in the program.
func TestSchema_HasTheLists(t *testing.T) {
	schema := readSchema(t)
	defs := schema["$defs"].(map[string]any)
	list := func(def, field string) []string {
		s := schema
		if def != "" {
			s = defs[def].(map[string]any)
		}
		if field != "" {
			s = s["properties"].(map[string]any)[field].(map[string]any)
		}
		var words []string
		for _, w := range s["enum"].([]any) {
			words = append(words, w.(string))
		}
		return words
	}
	var reasons []keyvault.Reason
	for _, r := range keyvault.Reasons() {
		if r != keyvault.Success { // is no failure
			reasons = append(reasons, r)
		}
	}
	require.Equal(t, words(reasons), list("reason", ""))
	require.Equal(t, words(status.Phases()), list("", "phase"))
	require.Equal(t, words(status.ConditionTypes()), list("condition", "type"))
	require.Equal(t, words([]status.ConditionStatus{status.True, status.False, status.Unknown}), list("condition", "status"))
	require.Equal(t, words([]status.Severity{status.Critical, status.Warning}), list("alarm", "severity"))
	require.Equal(t, words([]status.Role{status.RoleWrite, status.RoleNext, status.RoleRead}), list("key", "role"))
	require.Equal(t, words([]status.RotationState{status.RotationPending, status.RotationWaiting, status.RotationAdopted, status.RotationPinned}), list("rotation", "state"))
	require.Equal(t, words([]keyvault.Cause{
		keyvault.CauseNone, keyvault.CauseDNS, keyvault.CauseTCP, keyvault.CauseTLS, keyvault.CauseTimeout, keyvault.CauseServer, keyvault.CauseProxy,
	}), list("failure", "cause"))
	require.EqualValues(t, len(status.ConditionTypes()), schema["properties"].(map[string]any)["conditions"].(map[string]any)["minItems"])
}

func words[S ~string](list []S) (words []string) {
	for _, w := range list {
		words = append(words, string(w))
	}
	return words
}
