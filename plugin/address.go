package plugin

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
)

// maxPath is the longest path that fits a unix socket address, in bytes.
const maxPath = 107

// An Address says where the socket is.
type Address struct {
	// Path is absolute, or "@" and the name of an abstract socket.
	Path string
	// Warning says what to change in an address that is accepted as the
	// existing plugins accept it, but not what it seems. Usually empty.
	Warning string
}

// Abstract reports whether the socket has no file.
func (a Address) Abstract() bool { return strings.HasPrefix(a.Path, "@") }

// String is the address in the form that kube-apiserver's configuration wants.
func (a Address) String() string {
	if a.Abstract() {
		return "unix:///" + a.Path
	}
	return "unix://" + a.Path
}

// ParseAddress reads a --listen-addr: unix:///path, or unix:///@name for an
// abstract socket (unix://@name too). A relative path, unix://a/b, means the
// working directory, as it does for the existing plugins; kube-apiserver reads
// it otherwise, and the Warning says so.
func ParseAddress(s string) (Address, error) {
	scheme, path, ok := strings.Cut(s, "://")
	switch {
	case ok && strings.EqualFold(scheme, "tcp"):
		return Address{}, fmt.Errorf("%q: KMS is not served over TCP, where anyone could ask for decryption: write unix:///<path>", s)
	case !ok || !strings.EqualFold(scheme, "unix"):
		return Address{}, fmt.Errorf("%q is not the address of a unix socket: write unix:///<path>", s)
	case path == "" || path == "/" || path == "@" || path == "/@":
		return Address{}, fmt.Errorf("%q names no socket: write unix:///<path>", s)
	case strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return Address{}, fmt.Errorf("%q: the path holds control characters", s)
	}
	if name, ok := strings.CutPrefix(strings.TrimPrefix(path, "/"), "@"); ok {
		if runtime.GOOS != "linux" {
			return Address{}, fmt.Errorf("%q: abstract sockets exist on Linux only: write unix:///<path>", s)
		}
		a := Address{Path: "@" + name, Warning: fmt.Sprintf(
			"%s is an abstract socket: it has no permissions, so only root and this process's own user are served", s)}
		if got, err := dialed(s); err == nil && got != a.Path {
			a.Warning += fmt.Sprintf("; write the endpoint of kube-apiserver's configuration as %s", a)
		}
		return a, a.checkLength()
	}
	if strings.HasSuffix(path, "/") {
		return Address{}, fmt.Errorf("%q names a directory: write unix:///<directory>/<name>", s)
	}
	a := Address{Path: path}
	if err := a.checkLength(); err != nil {
		return Address{}, err
	}
	if !filepath.IsAbs(path) {
		abs, err := filepath.Abs(path)
		if err != nil {
			return Address{}, fmt.Errorf("%q is relative: finding the working directory: %w", s, err)
		}
		a.Path = abs
		if err := a.checkLength(); err != nil {
			return Address{}, err
		}
	}
	if got, err := dialed(s); err != nil {
		a.Warning = fmt.Sprintf("%s is served at %s, but kube-apiserver cannot read such an endpoint", s, a.Path)
	} else if got != a.Path {
		a.Warning = fmt.Sprintf("%s is served at %s, but kube-apiserver would look for it at %q: write the full path, unix:///<path>", s, a.Path, got)
	}
	return a, nil
}

func (a Address) checkLength() error {
	if len(a.Path) > maxPath {
		return fmt.Errorf("the socket path %s has %d bytes, and the kernel takes at most %d", a.Path, len(a.Path), maxPath)
	}
	return nil
}

// dialed is the path that kube-apiserver makes of an endpoint.
func dialed(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", err
	}
	if u.Scheme != "unix" {
		return "", errors.New("not a unix endpoint")
	}
	if name, ok := strings.CutPrefix(u.Path, "/@"); ok {
		return "@" + name, nil
	}
	return u.Path, nil
}
