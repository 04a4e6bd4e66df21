package plugin_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

func TestParseCiphertext(t *testing.T) {
	block := func(n int) []byte { return bytes.Repeat([]byte{0xfb}, n) }
	text := func(n int) []byte { return []byte(base64.RawURLEncoding.EncodeToString(block(n))) }
	for name, c := range map[string]struct {
		in     []byte
		format plugin.Format
		block  []byte // nil: refused
	}{
		"text of 2048 bits":    {text(256), plugin.Azure, block(256)},
		"text of 3072 bits":    {text(384), plugin.Azure, block(384)},
		"text of 4096 bits":    {text(512), plugin.Azure, block(512)},
		"block of 2048 bits":   {block(256), plugin.OpenShift, block(256)},
		"block of 3072 bits":   {block(384), plugin.OpenShift, block(384)},
		"block of 4096 bits":   {block(512), plugin.OpenShift, block(512)},
		"a block all but text": {append(text(384)[:511:511], '='), plugin.OpenShift, append(text(384)[:511:511], '=')},
		"nothing":              {nil, 0, nil},
		"one byte":             {[]byte{1}, 0, nil},
		"255 bytes":            {block(255), 0, nil},
		"padded text":          {[]byte(base64.URLEncoding.EncodeToString(block(256))), 0, nil},
		"the other alphabet":   {[]byte(base64.RawStdEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 256))), 0, nil},
		"text with a line end": {append(text(256)[:341:341], '\n'), 0, nil},
		// The last character carries four bits that encode nothing.
		"a second spelling": {append(text(256)[:341:341], text(256)[341]+1), 0, nil},
		"text of 257 bytes": {text(257), 0, nil},
		"a kilobyte":        {block(1024), 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, b, err := plugin.ParseCiphertext(c.in)
			if c.block == nil {
				require.Equal(t, keyvault.BadRequest, keyvault.ReasonOf(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.format, f)
			require.Equal(t, c.block, b)
		})
	}
}

// An RSA-4096 key takes 446 bytes, base64url text of 334 bytes just fits them.
func TestFormat_LongestPlaintext(t *testing.T) {
	for f, longest := range map[plugin.Format]int{plugin.Azure: 446, plugin.OpenShift: 334} {
		inner, err := f.Inner(make([]byte, longest))
		require.NoError(t, err)
		require.Len(t, inner, 446)
		_, err = f.Inner(make([]byte, longest+1))
		require.Equal(t, keyvault.BadRequest, keyvault.ReasonOf(err))
		_, err = f.Inner(nil)
		require.Equal(t, keyvault.BadRequest, keyvault.ReasonOf(err))
	}
}

func TestFormat_SeedIsStrict(t *testing.T) {
	for _, bad := range []string{"AAE=", "AA+_", "AAF", "AAE\n", "A", "\x00\x01"} {
		_, err := plugin.OpenShift.Seed([]byte(bad))
		require.Equal(t, keyvault.BadCiphertext, keyvault.ReasonOf(err), "%q", bad)
	}
	got, err := plugin.OpenShift.Seed([]byte("AAE"))
	require.NoError(t, err)
	require.Equal(t, []byte{0, 1}, got)
}

func TestParseAnnotations(t *testing.T) {
	good := func(edit map[string]string) map[string][]byte {
		a := map[string][]byte{"version.azure.akv.io": []byte("1"), "algorithm.azure.akv.io": []byte("RSA-OAEP-256")}
		for k, v := range edit {
			if a[k] = []byte(v); v == "-" {
				delete(a, k)
			}
		}
		return a
	}
	for name, c := range map[string]struct {
		in   map[string][]byte
		hint string
		err  string // what the error names
	}{
		"as the existing plugins":  {good(nil), "", ""},
		"ours":                     {good(map[string]string{"key-version.azure.akv.io": version1}), version1, ""},
		"foreign ones are ignored": {good(map[string]string{"x": "y", "date.azure.akv.io": strings.Repeat("z", 9000)}), "", ""},
		"a hint that is none":      {good(map[string]string{"key-version.azure.akv.io": "../secrets/x"}), "", ""},
		"a hint with a tail":       {good(map[string]string{"key-version.azure.akv.io": version1 + "\n"}), "", ""},
		"none":                     {nil, "", "version.azure.akv.io"},
		"no version":               {good(map[string]string{"version.azure.akv.io": "-"}), "", "version.azure.akv.io"},
		"another version":          {good(map[string]string{"version.azure.akv.io": "2"}), "", `version.azure.akv.io is "2"`},
		"no algorithm":             {good(map[string]string{"algorithm.azure.akv.io": "-"}), "", "algorithm.azure.akv.io"},
		"another algorithm":        {good(map[string]string{"algorithm.azure.akv.io": "RSA1_5"}), "", `algorithm.azure.akv.io is "RSA1_5"`},
	} {
		t.Run(name, func(t *testing.T) {
			hint, err := plugin.ParseAnnotations(c.in)
			require.Equal(t, c.hint, hint)
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.err)
			require.Equal(t, keyvault.BadRequest, keyvault.ReasonOf(err))
		})
	}
}

func TestParseFormat(t *testing.T) {
	for s, want := range map[string]plugin.Format{"": plugin.Azure, "azure": plugin.Azure, "openshift": plugin.OpenShift} {
		f, err := plugin.ParseFormat(s)
		require.NoError(t, err)
		require.Equal(t, want, f)
	}
	_, err := plugin.ParseFormat("aws")
	require.ErrorContains(t, err, `"aws"`)
}

// Whatever parses is the one spelling of what it parsed to, so no two stored
// ciphertexts lead to the same vault call.
func FuzzParseCiphertext(f *testing.F) {
	for _, n := range []int{0, 1, 256, 342, 384, 512, 683, 1024} {
		f.Add(bytes.Repeat([]byte{'A'}, n))
		f.Add(bytes.Repeat([]byte{0xff}, n))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		format, block, err := plugin.ParseCiphertext(in)
		if err != nil {
			require.Equal(t, keyvault.BadRequest, keyvault.ReasonOf(err))
			return
		}
		require.Contains(t, []int{256, 384, 512}, len(block))
		require.Equal(t, in, format.Outer(block))
	})
}

func FuzzSeed(f *testing.F) {
	f.Add([]byte("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"))
	f.Fuzz(func(t *testing.T, in []byte) {
		seed, err := plugin.OpenShift.Seed(in)
		if err != nil || len(seed) == 0 {
			return
		}
		if len(seed) <= 334 {
			back, err := plugin.OpenShift.Inner(seed)
			require.NoError(t, err)
			require.Equal(t, in, back)
		}
	})
}
