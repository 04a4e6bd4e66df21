// Package deps_test holds what the programs may link, which package may import
// which, and that the pages explain what the program shows.
package deps_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "azure-kms-plugin"

// program is the one that holds keys.
const program = module + "/cmd/azure-kms-plugin"

// golist runs "go list" for the platform of the image and with the tags of the
// Makefile.
func golist(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-tags", "grpcnotrace"}, args...)...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}

// below reports whether path is root or lies under it.
func below(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

// The plugin may use the key, so it has to be small enough to audit: no
// Kubernetes client or server, no etcd, nothing that is made for tests.
func TestProgram_LinksNothingThatItMustNot(t *testing.T) {
	forbidden := []string{
		"k8s.io/client-go", "k8s.io/apiserver", "k8s.io/apimachinery", "k8s.io/api", "k8s.io/klog", "k8s.io/component-base",
		"sigs.k8s.io", "go.etcd.io",
		module + "/test", "github.com/stretchr/testify", "testing",
		// It adds handlers to the default mux as soon as it is linked.
		"net/http/pprof",
		// They call methods by name, and the linker then keeps every method of
		// every type: the binary grows by a quarter.
		"text/template", "html/template", "golang.org/x/net/trace",
		// The SDKs that the existing plugins use are retired.
		"github.com/Azure/go-autorest", "github.com/Azure/azure-sdk-for-go/services",
	}
	deps := golist(t, "-deps", program)
	require.Contains(t, deps, "k8s.io/kms/apis/v2", "the list is not that of the program")
	for _, dep := range deps {
		for _, root := range forbidden {
			require.False(t, below(dep, root), "%s is linked", dep)
		}
	}
}

// A new module in the program is a decision. It is made here, where a
// reviewer sees it, and not by the way in a long go.sum.
func TestProgram_LinksTheseModulesOnly(t *testing.T) {
	want := []string{
		"github.com/Azure/azure-sdk-for-go/sdk/azcore",
		"github.com/Azure/azure-sdk-for-go/sdk/azidentity",
		"github.com/Azure/azure-sdk-for-go/sdk/internal",
		"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys",
		"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/internal",
		"github.com/AzureAD/microsoft-authentication-library-for-go",
		"github.com/beorn7/perks",
		"github.com/cespare/xxhash/v2",
		"github.com/golang-jwt/jwt/v5",
		"github.com/google/uuid",
		"github.com/kylelemons/godebug",
		"github.com/munnerz/goautoneg",
		"github.com/pkg/browser",
		"github.com/prometheus/client_golang",
		"github.com/prometheus/client_model",
		"github.com/prometheus/common",
		"github.com/prometheus/procfs",
		"go.uber.org/multierr",
		"go.uber.org/zap",
		"go.yaml.in/yaml/v2",
		"go.yaml.in/yaml/v3",
		"golang.org/x/crypto",
		"golang.org/x/net",
		"golang.org/x/sync",
		"golang.org/x/sys",
		"golang.org/x/text",
		"google.golang.org/genproto/googleapis/rpc",
		"google.golang.org/grpc",
		"google.golang.org/protobuf",
		"k8s.io/kms",
		"software.sslmate.com/src/go-pkcs12",
	}
	for _, got := range golist(t, "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", program) {
		require.Contains(t, want, got, "a module that nobody decided on is linked")
	}
}

// imports maps each of our packages to what it imports itself.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	m := map[string][]string{}
	for _, line := range golist(t, "-f", `{{.ImportPath}}{{range .Imports}},{{.}}{{end}}`, "./...") {
		names := strings.Split(line, ",")
		m[names[0]] = names[1:]
	}
	require.Contains(t, m, program)
	return m
}

// What our own code may import. The SDK needs some of it (it can start the
// Azure CLI, which we never ask it to); we do not.
func TestOurPackages_StayAwayFrom(t *testing.T) {
	forbidden := []string{"os/exec", "unsafe", "plugin", "math/rand", "net/http/pprof", "expvar"}
	for pkg, all := range imports(t) {
		for _, imp := range all {
			require.NotContains(t, forbidden, imp, pkg)
			if !below(pkg, module+"/cmd") {
				require.NotContains(t, []string{"log", "flag"}, imp, "%s: only a program logs by itself or reads flags", pkg)
			}
		}
	}
}

// Dependencies point one way: cmd to everything, everything to keyvault. Only the
// status document is for all: it is what a program outside reads.
func TestOurPackages_DependOneWay(t *testing.T) {
	allowed := map[string][]string{
		"keyvault":      nil,
		"plugin":        {"keyvault"},
		"health":        {"keyvault", "rotation", "health/status"},
		"health/status": nil,
		"metrics":       {"keyvault", "rotation", "health/status"},
		"rotation":      {"keyvault"},
	}
	top := func(pkg string) (name string, ours bool) {
		rest, ours := strings.CutPrefix(pkg, module+"/")
		// How text is written to a terminal is all that the document shares with others.
		if rest == "health/status" || rest == "health/internal/console" {
			return "health/status", true
		}
		name, _, _ = strings.Cut(rest, "/")
		return name, ours
	}
	for pkg, all := range imports(t) {
		from, _ := top(pkg)
		may, ok := allowed[from]
		if !ok {
			continue
		}
		for _, imp := range all {
			if to, ours := top(imp); ours {
				require.Contains(t, append(may, from), to, pkg)
			}
		}
	}
}
