package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
)

// statusTime is the time-out that kube-apiserver is usually given.
const statusTime = 3 * time.Second

// socket looks who serves at the socket, as kube-apiserver would find it.
func (w *walk) socket(ctx context.Context) {
	abstract := strings.HasPrefix(w.Socket, "@")
	if !abstract {
		if s, done := lookAt(w.Socket); done {
			w.add(s)
			return
		}
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", w.Socket)
	switch {
	case err == nil:
		conn.Close()
	case errors.Is(err, syscall.ECONNREFUSED) && abstract:
		w.add(noted(Socket, Note, "nothing serves at "+w.Socket+": that is right if no plugin runs"))
		return
	case errors.Is(err, syscall.ECONNREFUSED):
		w.add(Step{
			Name: Socket, State: Warn, Text: "nobody answers on " + w.Socket + ", which a process left behind",
			Remedy: "start the plugin, which removes the file; if it runs, look at its --listen-addr",
		})
		return
	case errors.Is(err, fs.ErrPermission):
		w.add(noted(Socket, Note, fmt.Sprintf("uid %d, gid %d may not connect to %s: run this as root or as the user of the plugin to see who serves there", os.Geteuid(), os.Getegid(), w.Socket)))
		return
	default:
		w.add(Step{Name: Socket, State: Warn, Text: w.Socket + " does not take a connection: " + bare(err), Remedy: "look at the process that serves there"})
		return
	}
	w.add(w.serving(ctx))
}

// lookAt looks at the path; done if there is nothing to connect to.
func lookAt(path string) (s Step, done bool) {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	warn := func(text, remedy string) (Step, bool) {
		return Step{Name: Socket, State: Warn, Text: text, Remedy: remedy}, true
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return noted(Socket, Note, fmt.Sprintf("uid %d, gid %d may not look into %s: run this as root or as the user of the plugin", os.Geteuid(), os.Getegid(), dir)), true
	case err != nil:
		return warn(fmt.Sprintf("the directory %s of --listen-addr: %s", dir, bare(err)), "make it, or mount it: the plugin cannot start without")
	case !info.IsDir():
		return warn(dir+", where --listen-addr wants the socket, is not a directory", "move it away, or give another --listen-addr")
	}
	info, err = os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		const write, enter = 2, 1
		text := "nothing serves at " + path + ": that is right if no plugin runs"
		if syscall.Access(dir, write|enter) != nil {
			text += fmt.Sprintf("; uid %d, gid %d could not make a socket there", os.Geteuid(), os.Getegid())
		}
		return noted(Socket, Note, text), true
	case errors.Is(err, fs.ErrPermission):
		return noted(Socket, Note, fmt.Sprintf("uid %d, gid %d may not look into %s: run this as root or as the user of the plugin", os.Geteuid(), os.Getegid(), dir)), true
	case err != nil:
		return warn(path+": "+bare(err), "look at that file system")
	case info.Mode()&fs.ModeSocket == 0:
		return warn(path+" is not a socket", "move it away, or give another --listen-addr: the plugin does not start over it")
	}
	return s, false
}

// bare is an error without path and address, which are told beside it.
func bare(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "no answer in time"
	}
	return "it failed"
}

// serving asks who serves for its state.
func (w *walk) serving(ctx context.Context) Step {
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", w.Socket)
		}))
	if err != nil {
		return noted(Socket, Warn, "no client could be made")
	}
	defer conn.Close()
	start := time.Now()
	answer, err := kmsapi.NewKeyManagementServiceClient(conn).Status(ctx, &kmsapi.StatusRequest{})
	took := millis(time.Since(start))
	switch st := status.Convert(err); {
	case err == nil && answer.Healthz == "ok":
		w.served = true
		return w.compared(answer.KeyId, took)
	case err == nil:
		return Step{Name: Socket, State: Warn, Text: "a plugin serves at " + w.Socket + ", and its Status says: " + answer.Healthz, Remedy: "look at its log"}
	case st.Code() == codes.DeadlineExceeded:
		return Step{
			Name: Socket, State: Warn, Text: fmt.Sprintf("%s takes connections, and Status is not answered within %s", w.Socket, statusTime),
			Remedy: "look at the process that serves there, and at its log",
		}
	case st.Code() == codes.Unimplemented:
		return Step{Name: Socket, State: Warn, Text: "what serves at " + w.Socket + " is no KMS v2 plugin", Remedy: "stop it, or give the plugin another --listen-addr"}
	default:
		return Step{
			Name: Socket, State: Warn, Text: "a plugin serves at " + w.Socket + ", and its Status fails: " + st.Message(),
			Remedy: "kube-apiserver is told the same: see azure-kms-plugin status",
		}
	}
}

// compared compares the key ID of the plugin that serves with that of the version that
// was looked at.
func (w *walk) compared(id, took string) Step {
	head := fmt.Sprintf("a plugin serves at %s; Status is ok, in %s, under key ID", w.Socket, took)
	foreign := fmt.Sprintf("%s %.80s", head, id)
	switch a := w.attributes; {
	case w.key.Version == "":
		return noted(Socket, OK, foreign+"; that cannot be compared, since the newest version is not known")
	case slices.Contains(w.key.KeyIDs(), id):
		return noted(Socket, OK, strings.TrimSuffix(head, " key ID")+" the key ID of this version")
	case w.Key.Version == "" && a != nil && w.pending(a):
		return noted(Socket, Note, fmt.Sprintf("%s; the newest version writes from %s on", foreign, stamp(w.due(a))))
	case w.Key.Version == "":
		return Step{
			Name: Socket, State: Warn, Text: foreign + ", which is not that of the newest version, " + w.key.KeyID(),
			Remedy: "another version or another key: compare its flags with these, and see azure-kms-plugin status for what it waits for",
		}
	}
	return Step{
		Name: Socket, State: Warn, Text: foreign + ", which is not that of this version, " + w.key.KeyID(),
		Remedy: "it serves another key or version than these flags name: compare its flags with these",
	}
}

// due is when the newest version begins to write; a change of it puts that off.
func (w *walk) due(a *keyvault.Attributes) time.Time {
	from := a.Created
	if a.Updated.After(from) {
		from = a.Updated
	}
	return from.Add(w.ActivationDelay)
}

func (w *walk) pending(a *keyvault.Attributes) bool {
	now := a.Date
	if now.IsZero() {
		now = time.Now()
	}
	// Some seconds more: the plugin switches on time, and is asked a moment later.
	return now.Before(w.due(a).Add(10 * time.Second))
}
