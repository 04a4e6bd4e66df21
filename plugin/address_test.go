package plugin_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/plugin"
)

func TestParseAddress(t *testing.T) {
	wd, err := os.Getwd()
	require.NoError(t, err)
	long := "/" + strings.Repeat("x", 106)
	for in, c := range map[string]struct {
		path    string // empty: refused
		says    string // in the warning or the error
		printed string
	}{
		"unix:///opt/azurekms.socket": {"/opt/azurekms.socket", "", "unix:///opt/azurekms.socket"},
		"UNIX:///opt/k.sock":          {"/opt/k.sock", "", "unix:///opt/k.sock"},
		"unix://" + long:              {long, "", "unix://" + long},
		"unix://" + long + "x":        {"", "108 bytes", ""},
		// 107 bytes in fewer letters.
		"unix:///" + strings.Repeat("é", 53):       {"/" + strings.Repeat("é", 53), "", "unix:///" + strings.Repeat("é", 53)},
		"unix:///a" + strings.Repeat("é", 53):      {"", "108 bytes", ""},
		"unix://a/b":                               {filepath.Join(wd, "a/b"), `look for it at "/b"`, "unix://" + filepath.Join(wd, "a/b")},
		"unix://k.sock":                            {filepath.Join(wd, "k.sock"), `look for it at ""`, "unix://" + filepath.Join(wd, "k.sock")},
		"unix:///opt/a b?c":                        {"/opt/a b?c", `look for it at "/opt/a b"`, "unix:///opt/a b?c"},
		"unix:///opt/a%zz":                         {"/opt/a%zz", "cannot read such an endpoint", "unix:///opt/a%zz"},
		"tcp://127.0.0.1:9000":                     {"", "over TCP", ""},
		"TCP://127.0.0.1:9000":                     {"", "over TCP", ""},
		"http://x":                                 {"", "unix:///<path>", ""},
		"/opt/azurekms.socket":                     {"", "unix:///<path>", ""},
		"unix:/opt/azurekms.socket":                {"", "unix:///<path>", ""},
		"":                                         {"", "unix:///<path>", ""},
		"unix://":                                  {"", "names no socket", ""},
		"unix:///":                                 {"", "names no socket", ""},
		"unix://@":                                 {"", "names no socket", ""},
		"unix:///@":                                {"", "names no socket", ""},
		"unix:///opt/":                             {"", "directory", ""},
		"unix:///opt/a\nb":                         {"", "control", ""},
		"unix:///opt/a\x00b":                       {"", "control", ""},
		"unix:///@" + strings.Repeat("x", 107):     {"", "108 bytes", ""},
		"unix://" + strings.Repeat("y", 150):       {"", "150 bytes", ""},
		"unix:///" + strings.Repeat("y", 5000):     {"", "at most 107", ""},
		"unix:///opt/../opt/./a":                   {"/opt/../opt/./a", "", "unix:///opt/../opt/./a"},
		"unix://" + strings.Repeat("y", 107) + "/": {"", "directory", ""},
	} {
		t.Run(in[:min(len(in), 40)], func(t *testing.T) {
			a, err := plugin.ParseAddress(in)
			if c.path == "" {
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.path, a.Path)
			require.Equal(t, c.printed, a.String())
			require.False(t, a.Abstract())
			if c.says == "" {
				require.Empty(t, a.Warning)
			}
			require.Contains(t, a.Warning, c.says)
		})
	}
}

func TestParseAddress_Abstract(t *testing.T) {
	if runtime.GOOS != "linux" {
		_, err := plugin.ParseAddress("unix:///@k")
		require.ErrorContains(t, err, "Linux")
		return
	}
	a, err := plugin.ParseAddress("unix:///@k/x")
	require.NoError(t, err)
	require.True(t, a.Abstract())
	require.Equal(t, "@k/x", a.Path)
	require.Equal(t, "unix:///@k/x", a.String())
	require.Contains(t, a.Warning, "no permissions")
	require.NotContains(t, a.Warning, "write the endpoint")

	a, err = plugin.ParseAddress("unix://@k")
	require.NoError(t, err)
	require.Equal(t, "@k", a.Path)
	require.Contains(t, a.Warning, "write the endpoint of kube-apiserver's configuration as unix:///@k")
}
