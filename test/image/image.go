// Package image builds the container image of azure-kms-plugin without a
// container engine, a base image or the network: an OCI archive whose bytes
// depend on nothing but the binaries and the [Config].
//
// Start with [Build], then [WriteArchive]. The image holds four files: the
// program, a bundle of CA certificates, passwd and group. There is no shell, no
// package manager and nothing to patch but Go.
//
// # Reproducibility
//
// Every time stamp is [Config.Created], every owner is root, files are in a
// fixed order and the certificates come from a pinned module, never from the
// machine that builds. Compression is Go's own, so two builds with the same
// toolchain have the same digest.
package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Program is where the image keeps the plugin. It is the entry point:
// HyperShift passes arguments only, so nothing else may stand in front of it.
const Program = "/azure-kms-plugin"

// User is who the plugin runs as unless the pod says otherwise: distroless'
// "nonroot", so that file permissions survive a change of image.
const User = "65532:65532"

// Config says what goes into an image.
type Config struct {
	// Binaries has the path of one static binary for each architecture, in
	// the order in which they appear in the index. Required.
	Binaries []Binary
	// EntryArgs follow Program in the entry point, before the pod's own
	// arguments. They set defaults where the arguments are not ours to choose.
	EntryArgs []string
	// Version is the program's version, for the labels. Empty means "dev".
	Version string
	// Revision is the commit, for the labels. Optional.
	Revision string
	// Created is the time that is written everywhere; zero means the epoch.
	Created time.Time
}

// A Binary is the program for one architecture.
type Binary struct {
	Arch string // as GOARCH has it
	Path string
}

func (c Config) created() time.Time {
	if c.Created.IsZero() {
		return time.Unix(0, 0).UTC()
	}
	return c.Created.UTC().Truncate(time.Second)
}

func (c Config) labels() map[string]string {
	l := map[string]string{
		"org.opencontainers.image.title":       "azure-kms-plugin",
		"org.opencontainers.image.description": "Kubernetes KMS v2 plugin for Azure Key Vault and Managed HSM",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     "dev",
		"org.opencontainers.image.created":     c.created().Format(time.RFC3339),
	}
	if c.Version != "" {
		l["org.opencontainers.image.version"] = c.Version
	}
	if c.Revision != "" {
		l["org.opencontainers.image.revision"] = c.Revision
	}
	return l
}

// Build makes one image for each binary and the index over them.
func Build(c Config) (v1.ImageIndex, error) {
	if len(c.Binaries) == 0 {
		return nil, errors.New("an image needs at least one binary")
	}
	// The first layer is the same for every architecture and every version,
	// so that nodes fetch it once.
	base, err := layer(baseFiles())
	if err != nil {
		return nil, fmt.Errorf("making the base layer: %w", err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range c.Binaries {
		img, err := build(c, b, base)
		if err != nil {
			return nil, fmt.Errorf("making the image for %s: %w", b.Arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: b.Arch}},
		})
	}
	return mutate.Annotations(index, c.labels()).(v1.ImageIndex), nil
}

func build(c Config, b Binary, base v1.Layer) (v1.Image, error) {
	program, err := os.ReadFile(b.Path)
	if err != nil {
		return nil, err
	}
	if err := checkBinary(b.Arch, program); err != nil {
		return nil, err
	}
	top, err := layer([]file{{name: Program, mode: 0o755, data: program}})
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	history := func(what string) v1.History {
		return v1.History{Created: v1.Time{Time: c.created()}, CreatedBy: what}
	}
	img, err = mutate.Append(img,
		mutate.Addendum{Layer: base, History: history("CA certificates and the nonroot user")},
		mutate.Addendum{Layer: top, History: history(Program)})
	if err != nil {
		return nil, err
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", b.Arch
	cf.Created = v1.Time{Time: c.created()}
	cf.Config = v1.Config{
		Entrypoint: append([]string{Program}, c.EntryArgs...),
		User:       User,
		WorkingDir: "/",
		// So that "kubectl exec POD -- azure-kms-plugin -version" finds it.
		Env:    []string{"PATH=" + path.Dir(Program)},
		Labels: c.labels(),
	}
	img, err = mutate.ConfigFile(img, cf)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(img, c.labels()).(v1.Image), nil
}

// A file is a regular file of a layer; the folders above it are implied.
type file struct {
	name string // absolute
	mode int64
	data []byte
}

// layer packs files into a gzip-compressed OCI layer. Its times are the epoch
// and not Config.Created: a new commit alone must not make a new base layer.
func layer(files []file) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{"/": true}
	for _, f := range files {
		if err := mkdirs(w, made, path.Dir(f.name)); err != nil {
			return nil, err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name[1:], Mode: f.mode, Size: int64(len(f.data)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// mkdirs writes the folders down to dir that made does not have yet.
func mkdirs(w *tar.Writer, made map[string]bool, dir string) error {
	if made[dir] {
		return nil
	}
	if err := mkdirs(w, made, path.Dir(dir)); err != nil {
		return err
	}
	made[dir] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}
