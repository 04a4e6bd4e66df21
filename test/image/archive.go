package image

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// WriteArchive writes index as an OCI archive: a tar of an OCI image layout,
// as skopeo, podman, ctr and docker load read it. The name is the reference
// that they store it under.
func WriteArchive(file string, index v1.ImageIndex, name string) error {
	dir, err := os.MkdirTemp("", "oci-layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return fmt.Errorf("writing the layout: %w", err)
	}
	err = p.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": name,
		"io.containerd.image.name":          name,
	}))
	if err != nil {
		return fmt.Errorf("writing the layout: %w", err)
	}

	// Beside the target, so that the rename that publishes it is atomic.
	out, err := os.CreateTemp(filepath.Dir(file), ".oci-*.tar")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	if err := pack(out, dir); err != nil {
		return fmt.Errorf("packing the archive: %w", err)
	}
	if err := out.Chmod(0o644); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), file)
}

// pack writes the tree under dir to w. WalkDir is in lexical order and the
// headers hold nothing of this machine, so equal trees make equal archives.
func pack(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: rel + "/", Mode: 0o755, ModTime: time.Unix(0, 0)})
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
		_, err = tw.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

// OpenArchive unpacks an archive that WriteArchive made into dir, which must
// be empty, and returns the one index in it.
func OpenArchive(file, dir string) (v1.ImageIndex, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := untar(f, dir); err != nil {
		return nil, fmt.Errorf("unpacking %s: %w", file, err)
	}
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	m, err := top.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) != 1 {
		return nil, fmt.Errorf("%s holds %d images instead of one", file, len(m.Manifests))
	}
	return top.ImageIndex(m.Manifests[0].Digest)
}

// Unpack writes the file system of img to dir, as a container runtime would
// before it starts the image, and returns the bytes that its files take.
func Unpack(img v1.Image, dir string) (size int64, err error) {
	r := mutate.Extract(img)
	defer r.Close()
	if err := untar(r, dir); err != nil {
		return 0, err
	}
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		size += i.Size()
		return nil
	})
	return size, err
}

// untar writes the folders and regular files of a tar to dir; os.Root keeps
// every name inside it. Anything else has no place in our images.
func untar(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		mode := h.FileInfo().Mode().Perm()
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(h.Name, mode)
		case tar.TypeReg:
			err = writeFile(root, h.Name, mode, tr)
		default:
			err = fmt.Errorf("%s is of type %q", h.Name, h.Typeflag)
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(root *os.Root, name string, mode fs.FileMode, r io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		return err
	}
	return f.Close()
}
