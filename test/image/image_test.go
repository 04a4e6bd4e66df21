package image_test

import (
	"crypto/x509"
	"debug/elf"
	"encoding/pem"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/image"
)

const version = "v0.0.0-image-test"

// created is any time but the epoch, so that a forgotten one is seen.
var created = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// moduleRoot is where the program's module lies, seen from this folder.
const moduleRoot = "../.."

// compile builds the program from the module in dir, as the Makefile does.
func compile(dir, arch, out string) error {
	cmd := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+version, "-o", out, "./cmd/azure-kms-plugin")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// binaries builds the program of this work tree once for all tests.
var binaries = sync.OnceValues(func() ([]image.Binary, error) {
	dir, err := os.MkdirTemp("", "image-test-")
	if err != nil {
		return nil, err
	}
	return compileAll(moduleRoot, dir)
})

func compileAll(src, dir string) ([]image.Binary, error) {
	var all []image.Binary
	for _, arch := range []string{"amd64", "arm64"} {
		out := filepath.Join(dir, "azure-kms-plugin-"+arch)
		if err := compile(src, arch, out); err != nil {
			return nil, err
		}
		all = append(all, image.Binary{Arch: arch, Path: out})
	}
	return all, nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if all, err := binaries(); err == nil {
		os.RemoveAll(filepath.Dir(all[0].Path))
	}
	os.Exit(code)
}

func config(t *testing.T) image.Config {
	t.Helper()
	all, err := binaries()
	require.NoError(t, err)
	return image.Config{Binaries: all, Version: version, Revision: strings.Repeat("ab", 20), Created: created}
}

func build(t *testing.T, c image.Config) v1.ImageIndex {
	t.Helper()
	index, err := image.Build(c)
	require.NoError(t, err)
	return index
}

// platform returns the image that a node of the given architecture would run.
func platform(t *testing.T, index v1.ImageIndex, arch string) v1.Image {
	t.Helper()
	m, err := index.IndexManifest()
	require.NoError(t, err)
	for _, d := range m.Manifests {
		if d.Platform.OS == "linux" && d.Platform.Architecture == arch {
			img, err := index.Image(d.Digest)
			require.NoError(t, err)
			return img
		}
	}
	require.Failf(t, "no image", "for linux/%s", arch)
	return nil
}

func TestBuild_IsWhatContainerRuntimesExpect(t *testing.T) {
	index := build(t, config(t))
	m, err := index.IndexManifest()
	require.NoError(t, err)
	require.Len(t, m.Manifests, 2)

	for _, arch := range []string{"amd64", "arm64"} {
		cf, err := platform(t, index, arch).ConfigFile()
		require.NoError(t, err)
		require.Equal(t, arch, cf.Architecture)
		require.Equal(t, []string{"/azure-kms-plugin"}, cf.Config.Entrypoint)
		require.Empty(t, cf.Config.Cmd, "the pod's arguments must not have to override any")
		require.Equal(t, "65532:65532", cf.Config.User)
		require.Equal(t, created, cf.Created.UTC())
		require.Equal(t, version, cf.Config.Labels["org.opencontainers.image.version"])
		require.Equal(t, strings.Repeat("ab", 20), cf.Config.Labels["org.opencontainers.image.revision"])
		require.Equal(t, "Apache-2.0", cf.Config.Labels["org.opencontainers.image.licenses"])
	}
}

func TestBuild_EntryArgsComeBeforeThePods(t *testing.T) {
	c := config(t)
	c.EntryArgs = []string{"--ciphertext-format=openshift"}
	cf, err := platform(t, build(t, c), "amd64").ConfigFile()
	require.NoError(t, err)
	require.Equal(t, []string{"/azure-kms-plugin", "--ciphertext-format=openshift"}, cf.Config.Entrypoint)
}

func TestBuild_FileSystem(t *testing.T) {
	index := build(t, config(t))
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(arch, func(t *testing.T) {
			root := t.TempDir()
			size, err := image.Unpack(platform(t, index, arch), root)
			require.NoError(t, err)
			t.Logf("%s: %.1f MiB in files", arch, float64(size)/(1<<20))
			require.Less(t, size, int64(25<<20))

			require.Equal(t, map[string]fs.FileMode{
				"azure-kms-plugin":                  0o755,
				"etc/group":                         0o644,
				"etc/passwd":                        0o644,
				"etc/ssl/certs/ca-certificates.crt": 0o644,
			}, files(t, root))
			passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
			require.NoError(t, err)
			require.Contains(t, string(passwd), "nonroot:x:65532:65532:")

			program, err := elf.Open(filepath.Join(root, "azure-kms-plugin"))
			require.NoError(t, err)
			defer program.Close()
			require.Equal(t, machine, program.Machine)
			libs, err := program.ImportedLibraries()
			require.NoError(t, err)
			require.Empty(t, libs)
		})
	}
}

// files lists the regular files under root with their modes.
func files(t *testing.T, root string) map[string]fs.FileMode {
	t.Helper()
	modes := map[string]fs.FileMode{}
	require.NoError(t, fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		modes[name] = i.Mode()
		return err
	}))
	return modes
}

func TestBuild_TrustsTheRootsOfAzure(t *testing.T) {
	root := t.TempDir()
	_, err := image.Unpack(platform(t, build(t, config(t)), "amd64"), root)
	require.NoError(t, err)
	rest, err := os.ReadFile(filepath.Join(root, image.Bundle))
	require.NoError(t, err)
	names := map[string]bool{}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		require.True(t, c.IsCA)
		names[c.Subject.CommonName] = true
	}
	require.Greater(t, len(names), 80)
	// Source: Microsoft, "Azure Certificate Authority details", root
	// certificates. The first "DigiCert Global Root CA" is also there, but
	// Mozilla has withdrawn its trust.
	for _, name := range []string{
		"DigiCert Global Root G2", "DigiCert Global Root G3",
		"Microsoft RSA Root Certificate Authority 2017", "Microsoft ECC Root Certificate Authority 2017",
		"DigiCert TLS RSA4096 Root G5", "DigiCert TLS ECC P384 Root G5",
	} {
		require.Contains(t, names, name)
	}
}

// The same source in another folder must give the same image: a path, a time
// or a host name that got in would show.
func TestBuild_IsReproducible(t *testing.T) {
	src := t.TempDir()
	list, err := exec.Command("git", "-C", moduleRoot, "ls-files", "-co", "--exclude-standard").Output()
	require.NoError(t, err)
	for name := range strings.Lines(string(list)) {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, "test/") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(moduleRoot, name))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(src, name), data, 0o600))
	}
	again, err := compileAll(src, t.TempDir())
	require.NoError(t, err)

	c := config(t)
	first := build(t, c)
	c.Binaries = again
	second := build(t, c)
	require.Equal(t, digest(t, first), digest(t, second))

	one, two := filepath.Join(t.TempDir(), "a.tar"), filepath.Join(t.TempDir(), "b.tar")
	require.NoError(t, image.WriteArchive(one, first, "azure-kms-plugin:test"))
	require.NoError(t, image.WriteArchive(two, second, "azure-kms-plugin:test"))
	a, err := os.ReadFile(one)
	require.NoError(t, err)
	b, err := os.ReadFile(two)
	require.NoError(t, err)
	require.True(t, string(a) == string(b), "the archives differ although the images are the same")

	// Something that must show in the digest, or the comparison proves nothing.
	c.Created = created.Add(time.Second)
	require.NotEqual(t, digest(t, first), digest(t, build(t, c)))
}

func digest(t *testing.T, index v1.ImageIndex) string {
	t.Helper()
	d, err := index.Digest()
	require.NoError(t, err)
	return d.String()
}

func TestArchive_GivesBackTheIndex(t *testing.T) {
	index := build(t, config(t))
	file := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, image.WriteArchive(file, index, "azure-kms-plugin:test"))
	got, err := image.OpenArchive(file, t.TempDir())
	require.NoError(t, err)
	require.NoError(t, validate.Index(got))
	require.Equal(t, digest(t, index), digest(t, got))
}

func TestBuild_RefusesWhatCannotStart(t *testing.T) {
	good := config(t)
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600))
	for name, tc := range map[string]struct {
		binaries []image.Binary
		want     string
	}{
		"nothing":            {nil, "at least one binary"},
		"no file":            {[]image.Binary{{Arch: "amd64", Path: script + "x"}}, "no such file"},
		"not a binary":       {[]image.Binary{{Arch: "amd64", Path: script}}, "reading the binary"},
		"another machine":    {[]image.Binary{{Arch: "arm64", Path: good.Binaries[0].Path}}, "EM_X86_64"},
		"an unknown machine": {[]image.Binary{{Arch: "s390x", Path: good.Binaries[0].Path}}, "s390x"},
		"not static":         {[]image.Binary{{Arch: runtime.GOARCH, Path: "/bin/sh"}}, "CGO_ENABLED=0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			c.Binaries = tc.binaries
			_, err := image.Build(c)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
