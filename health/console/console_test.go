package console_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/console"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain, ключ, 鍵 — “x”": "plain, ключ, 鍵 — “x”",
		"a\nb\tc":              `a\nb\tc`,
		"\x1b[31m":             `\x1b[31m`,
		"\u009b31m":            `\u009b31m`,
		"\u202eabc":            `\u202eabc`,
		"\xff\xfe":             `\xff\xfe`,
		"\uFFFD":               "\uFFFD",
		"\U000e0001":           `\U000e0001`,
		`a\nb`:                 `a\nb`,
	} {
		require.Equal(t, want, console.Clean(in, 100), "%q", in)
	}
	require.Equal(t, "aaaaaa...", console.Clean(strings.Repeat("a", 100), 5))
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b\u009b\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		got := console.Clean(s, 50)
		require.True(t, utf8.ValidString(got))
		require.LessOrEqual(t, len(got), 50+10+3)
		require.False(t, strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }))
		encoded, err := json.Marshal(s)
		require.NoError(t, err)
		safe := console.CleanJSON(encoded)
		require.False(t, strings.ContainsFunc(string(safe), func(r rune) bool { return !unicode.IsPrint(r) }), "%q", safe)
		var before, after string
		require.NoError(t, json.Unmarshal(encoded, &before))
		require.NoError(t, json.Unmarshal(safe, &after))
		require.Equal(t, before, after)
	})
}

func TestWrap(t *testing.T) {
	var out bytes.Buffer
	console.Wrap(&out, "head  ", strings.Repeat("word ", 20)+strings.Repeat("x", 90)+" end", 0)
	console.Wrap(&out, "- ", strings.Repeat("word ", 17), 8)
	console.Wrap(&out, "nothing  ", "", 0)
	require.Equal(t, "head  "+strings.Repeat("word ", 14)+"word\n"+
		"      "+strings.Repeat("word ", 4)+"word\n"+
		"      "+strings.Repeat("x", 90)+"\n"+
		"      end\n"+
		"- "+strings.Repeat("word ", 14)+"word\n"+
		"        word word\n"+
		"nothing\n", out.String())
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	console.Table(&out, [][]string{{"A", "LONGER", "C"}, {"ключ", "-", "x"}, {"b", "", ""}})
	require.Equal(t, "A     LONGER  C\nключ  -       x\nb\n", out.String())
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59900 * time.Millisecond: "59s", time.Minute: "1m0s", 3*time.Hour + 15*time.Minute + 9*time.Second: "3h15m",
		47*time.Hour + 59*time.Minute: "47h59m", 48 * time.Hour: "2d0h", 1000 * time.Hour: "41d16h",
	} {
		require.Equal(t, want, console.Age(d))
	}
}
