package stack

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
)

// Binaries are the programs of a Kubernetes control plane.
type Binaries struct {
	APIServer string
	Etcd      string
	// Version and EtcdVersion are those that test/kube/go.mod names.
	Version     string
	EtcdVersion string
}

// Kube returns kube-apiserver and etcd, built from the module test/kube of the
// source tree at root unless they are in the cache already.
func Kube(ctx context.Context, root string, news io.Writer) (Binaries, error) {
	dir := filepath.Join(root, "test", "kube")
	gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return Binaries{}, fmt.Errorf("finding the versions of kube-apiserver and etcd: %w", err)
	}
	b := Binaries{
		Version:     required(gomod, "k8s.io/kubernetes"),
		EtcdVersion: required(gomod, "go.etcd.io/etcd/server/v3"),
	}
	out, err := Build{
		Name:     "kube-" + b.Version + "-etcd-" + b.EtcdVersion,
		Dir:      dir,
		Sources:  []string{"go.mod", "go.sum", "kube-apiserver/main.go", "etcd/main.go"},
		Packages: []string{"./kube-apiserver", "./etcd"},
		// The version is stamped as in a release: kube-apiserver decides
		// by it which APIs it serves.
		LDFlags: "-s -w -X k8s.io/component-base/version.gitVersion=" + b.Version,
		About: fmt.Sprintf("kube-apiserver %s and etcd %s (10 to 25 minutes on two cores, only this once)",
			b.Version, b.EtcdVersion),
	}.Run(ctx, news)
	if err != nil {
		return Binaries{}, err
	}
	b.APIServer = filepath.Join(out, "kube-apiserver")
	b.Etcd = filepath.Join(out, "etcd")
	return b, nil
}

// required is the version of module that a go.mod file asks for.
func required(gomod []byte, module string) string {
	m := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(gomod)
	if m == nil {
		return "unknown"
	}
	return string(m[1])
}
