package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"azure-kms-plugin/health/status"
)

// A source leads to one status document.
type source struct {
	url  string // empty for a file
	path string
}

// whatToGive is what to give the status command in place of another file.
const whatToGive = "give the host and the --healthz-port, as in 127.0.0.1:8787, or the file of --status-file"

// parseSource reads an argument of the status command: a URL, a host and a port, a port
// of this machine, or else the path of a file. A URL with a user is refused without
// being quoted.
func parseSource(arg string) (source, string) {
	s := clean(arg)
	scheme, _, isURL := strings.Cut(s, "://")
	switch {
	case s == "":
		return source{}, "an argument is empty: give a URL, a host and its port, or a file"
	case isPort(strings.TrimPrefix(s, ":")):
		return source{url: "http://127.0.0.1:" + strings.TrimPrefix(s, ":") + "/status"}, ""
	case !isURL && hasPort(s):
		return source{url: "http://" + s + "/status"}, ""
	case !isURL:
		return source{path: s}, ""
	case scheme == "unix":
		return source{}, "an argument is the KMS socket, which has no status document: " + whatToGive
	case scheme != "http" && scheme != "https":
		return source{}, "an argument is a URL of neither http nor https: write http://<host>:<port>/status"
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return source{}, "an argument is not the URL of a status document: write http://<host>:<port>/status, without user, query or fragment"
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/status"
	}
	return source{url: u.String()}, ""
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

func (s source) String() string { return s.url + s.path }

// read reads the document. What keeps it from that is part of the item.
func (s source) read(ctx context.Context, timeout time.Duration) status.Item {
	item := status.Item{Source: s.String()}
	if s.url != "" {
		item.Document, item.Reason, item.Error = fetch(ctx, s.url, timeout)
		if item.Reason == status.BadStatus || item.Reason == status.NotDocument {
			item.Error += s.elsewhere()
		}
	} else {
		item.Document, item.Reason, item.Error = load(s.path)
	}
	return item
}

// elsewhere says where the document is, for a URL that leads to something else.
func (s source) elsewhere() string {
	u, err := url.Parse(s.url)
	if err != nil || strings.HasSuffix(u.Path, "/status") {
		return ""
	}
	return "; ask for /status: " + u.Scheme + "://" + u.Host + "/status"
}

// fetch asks a plugin. It goes there directly and nowhere else: a proxy knows
// another loopback, and a redirect would have somebody else answer.
func fetch(ctx context.Context, url string, timeout time.Duration) (*status.Document, status.Unread, string) {
	transport := &http.Transport{
		Proxy: nil, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
		DialContext: (&net.Dialer{}).DialContext,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, status.NotRead, "no request could be made of this URL"
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		reason, text := unreached(ctx, err, timeout)
		return nil, reason, text
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text := fmt.Sprintf("http %d %s: what listens there has no status document: is the port the plugin's --healthz-port?", resp.StatusCode, http.StatusText(resp.StatusCode))
		if resp.StatusCode/100 == 3 {
			text = fmt.Sprintf("http %d: it redirects elsewhere, which is not followed: give the URL that it leads to, if that is a plugin's", resp.StatusCode)
		}
		return nil, status.BadStatus, text
	}
	d, err := status.Decode(resp.Body)
	switch {
	case err == nil:
		return d, "", ""
	case ctx.Err() != nil:
		return nil, status.TimedOut, fmt.Sprintf("the answer did not end within %s", timeout)
	case isNetwork(err):
		return nil, status.NotRead, "the connection broke off amid the answer"
	}
	return nil, status.NotDocument, "what answers there is no plugin of this program: " + err.Error()
}

func isNetwork(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok || errors.Is(err, io.ErrUnexpectedEOF)
}

// unreached puts in words why a plugin could not be asked.
func unreached(ctx context.Context, err error, timeout time.Duration) (status.Unread, string) {
	dns, isDNS := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return status.Refused, "nothing listens there: is the plugin running, and is --healthz-port the one?"
	case isDNS && dns.IsNotFound:
		return status.NoSuchName, "the host's name does not exist"
	case ctx.Err() != nil:
		return status.TimedOut, fmt.Sprintf("no answer within %s: is the machine up, does a firewall lie between, does the process hang?", timeout)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF):
		return status.NotRead, "the connection was closed without an answer: is the port the plugin's --healthz-port?"
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return status.NotRead, "connecting: " + errno.Error()
	}
	return status.NotRead, "what listens there does not answer as a plugin does: is the port the plugin's --healthz-port, and the scheme http?"
}

// load reads a status file. It never waits for a pipe.
func load(path string) (*status.Document, status.Unread, string) {
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
		return nil, status.NotDocument, "it is a socket, such as that on which KMS is served to kube-apiserver: " + whatToGive
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		text := "there is no such file: has the plugin started, with this --status-file?"
		if !strings.Contains(path, "/") {
			text = "there is no such file; if it is a host, write its port too, as in " + path + ":8787"
		}
		return nil, status.NoSuchFile, text
	case strings.HasSuffix(path, ".state"):
		if err == nil {
			f.Close()
		}
		return nil, status.NotDocument, "it is the state file, which the plugin keeps for itself, and not the status file: " + whatToGive
	case errors.Is(err, fs.ErrPermission):
		return nil, status.Forbidden, fmt.Sprintf("it may not be read by uid %d, gid %d: be root or the user of the plugin", os.Geteuid(), os.Getegid())
	case err != nil:
		return nil, status.NotRead, "it cannot be opened: " + bare(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, status.NotDocument, "it is not a regular file"
	}
	d, err := status.Decode(f)
	if err != nil {
		return nil, status.NotDocument, "it is no status file: " + bare(err)
	}
	return d, "", ""
}

// bare is an error without the path, which is told beside it.
func bare(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}
