package keyvault

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A field is one top-level entry of azure.json. scalar is false for null and for
// objects and lists, which no field of ours is.
type field struct {
	name   string
	value  string
	line   int
	scalar bool
	null   bool
	// keyStyle and style are how YAML found them written.
	keyStyle, style yaml.Style
}

// parseFields reads the top level of a JSON or YAML object. JSON is tried
// first: it is not quite a subset of YAML (surrogate pairs, tabs). The parsers'
// own messages may quote the file, so only positions are taken from them.
func parseFields(data []byte) ([]field, error) {
	trimmed := bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	if len(trimmed) == 0 {
		return nil, errors.New("empty file")
	}
	if trimmed[0] != '{' {
		return parseYAML(data)
	}
	if json.Valid(trimmed) {
		return parseJSON(data, trimmed)
	}
	fields, err := parseYAML(data)
	if err == nil && !altered(fields, trimmed) {
		return fields, nil
	}
	var raw json.RawMessage
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(trimmed, &raw)); ok {
		line, column := position(trimmed, syntax.Offset)
		line += bytes.Count(data[:bytes.IndexByte(data, '{')], []byte("\n"))
		return nil, fmt.Errorf("line %d, column %d: not valid JSON (a bracket or comma is missing, a quote or backslash inside a value is not escaped, or something follows after the end)", line, column)
	}
	return nil, err
}

func parseJSON(data, trimmed []byte) ([]field, error) {
	lead := bytes.Count(data[:bytes.IndexByte(data, '{')], []byte("\n"))
	dec := json.NewDecoder(bytes.NewReader(trimmed))
	dec.UseNumber()
	_, _ = dec.Token() // the opening brace; the whole is valid
	var fields []field
	for dec.More() {
		name, _ := dec.Token()
		line, _ := position(trimmed, dec.InputOffset())
		var value any
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("line %d: not valid JSON", line+lead)
		}
		f := field{name: fmt.Sprint(name), line: line + lead}
		switch v := value.(type) {
		case nil:
			f.null = true
		case string, bool, json.Number:
			f.value, f.scalar = fmt.Sprint(v), true
		}
		fields = append(fields, f)
	}
	return fields, nil
}

var yamlLine = pattern(`line (\d+)`)

func parseYAML(data []byte) ([]field, error) {
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&doc)
	for err == nil {
		// What follows would be ignored: half of an older file, for example.
		var more yaml.Node
		if err = dec.Decode(&more); err == nil && len(more.Content) > 0 && more.Content[0].Tag != "!!null" {
			return nil, fmt.Errorf("line %d: something follows after the end of the object", more.Content[0].Line)
		}
	}
	if !errors.Is(err, io.EOF) {
		if m := yamlLine().FindStringSubmatch(err.Error()); m != nil {
			return nil, fmt.Errorf("near line %s: neither valid JSON nor valid YAML", m[1])
		}
		return nil, errors.New("neither valid JSON nor valid YAML")
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil, errors.New("no credential: the file holds nothing")
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: not an object of fields and values", root.Line)
	}
	var fields []field
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		fields = append(fields, field{
			name: key.Value, value: value.Value, line: key.Line,
			scalar: value.Kind == yaml.ScalarNode && value.Tag != "!!null", null: value.Tag == "!!null",
			keyStyle: key.Style, style: value.Style,
		})
	}
	return fields, nil
}

// altered reports whether a file that is nearly JSON may mean something else
// than YAML makes of it. An unescaped quote or backslash in a secret is the usual
// reason for it not to be JSON, and YAML takes some of these: it knows more
// escapes, folds lines and goes on with plain text after a quote.
func altered(fields []field, text []byte) bool {
	for _, f := range fields {
		if f.keyStyle&yaml.DoubleQuotedStyle != fields[0].keyStyle&yaml.DoubleQuotedStyle {
			return true
		}
		for _, part := range []struct {
			value string
			style yaml.Style
		}{{f.name, f.keyStyle}, {f.value, f.style}} {
			switch {
			case part.style&yaml.DoubleQuotedStyle != 0 && !bytes.Contains(text, []byte(`"`+part.value+`"`)),
				part.style == 0 && strings.ContainsAny(part.value, `"\\`):
				return true
			}
		}
	}
	return false
}

// position is that of the byte that ends at offset.
func position(data []byte, offset int64) (line, column int) {
	before := data[:min(max(int(offset)-1, 0), len(data))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

// assign copies the fields that this package knows. Errors name the field and
// line, never the value.
func (c *AzureConfig) assign(fields []field) error {
	targets := map[string]any{
		"cloud":                        &c.CloudName,
		"tenantid":                     &c.TenantID,
		"aadclientid":                  &c.ClientID,
		"aadclientsecret":              &c.ClientSecret,
		"aadclientcertpath":            &c.ClientCertPath,
		"aadclientcertpassword":        &c.ClientCertPassword,
		"usemanagedidentityextension":  &c.UseManagedIdentity,
		"userassignedidentityid":       &c.UserAssignedIdentityID,
		"useworkloadidentityextension": &c.UseWorkloadIdentity,
		"aadmsidataplaneidentitypath":  &c.MSIDataPlanePath,
	}
	var errs []error
	seen := map[string]int{}
	for _, f := range fields {
		name := strings.ToLower(f.name)
		target, ok := targets[name]
		if !ok || f.null {
			continue
		}
		if first, dup := seen[name]; dup {
			errs = append(errs, fmt.Errorf("line %d: %s is given twice, first on line %d", f.line, f.name, first))
			continue
		}
		seen[name] = f.line
		if !f.scalar {
			errs = append(errs, fmt.Errorf("line %d: %s must be a single value", f.line, f.name))
			continue
		}
		switch t := target.(type) {
		case *string:
			*t = strings.TrimSpace(f.value)
		case *Secret:
			*t = NewSecret(f.value)
		case *bool:
			switch strings.ToLower(strings.TrimSpace(f.value)) {
			case "true":
				*t = true
			case "false", "":
			default:
				errs = append(errs, fmt.Errorf("line %d: %s must be true or false", f.line, f.name))
			}
		}
	}
	return errors.Join(errs...)
}
