package image_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/image"
	"azure-kms-plugin/test/vault"
	"azure-kms-plugin/test/vault/freeport"
)

// nonroot is the numeric form of image.User.
const nonroot = 65532

// A container is one process of the image, shut in as a pod with
// readOnlyRootFilesystem and no capabilities shuts it in: its root is the
// unpacked image, mounted read-only, and only /opt can be written to.
type container struct {
	root  string // the image, as the host sees it
	opt   string // what is mounted on /opt, as the host sees it
	entry []string
	env   []string
	log   *os.File
}

// newContainer unpacks the image for this machine from an archive, as a node does.
func newContainer(t *testing.T, c image.Config) *container {
	t.Helper()
	if os.Geteuid() != 0 {
		require.Empty(t, os.Getenv("CI"), "CI runs this test as root")
		t.Skip("mounting a root file system needs root")
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, image.WriteArchive(file, build(t, c), "azure-kms-plugin:test"))
	index, err := image.OpenArchive(file, t.TempDir())
	require.NoError(t, err)
	img := platform(t, index, runtime.GOARCH)
	cf, err := img.ConfigFile()
	require.NoError(t, err)
	require.Equal(t, image.User, cf.Config.User)

	// Not t.TempDir: its folders can be entered by their owner alone, and the
	// path of the socket has to be short.
	base, err := os.MkdirTemp("", "img-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	require.NoError(t, os.Chmod(base, 0o755))
	k := &container{
		root: filepath.Join(base, "root"), opt: filepath.Join(base, "opt"),
		entry: cf.Config.Entrypoint, env: cf.Config.Env,
	}
	require.NoError(t, os.Mkdir(k.root, 0o755))
	_, err = image.Unpack(img, k.root)
	require.NoError(t, err)
	// A runtime makes the mount points of volumes before it starts the image.
	for _, dir := range []string{"opt", "etc/kubernetes"} {
		require.NoError(t, os.MkdirAll(filepath.Join(k.root, dir), 0o755))
	}
	require.NoError(t, os.Mkdir(k.opt, 0o700))
	require.NoError(t, os.Chown(k.opt, nonroot, nonroot))
	k.log, err = os.Create(filepath.Join(base, "log"))
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			data, _ := os.ReadFile(k.log.Name())
			t.Logf("the container's log:\n%s", data)
		}
		k.log.Close()
	})
	return k
}

// mount puts a file under /etc/kubernetes, as a Secret with defaultMode 0640
// and fsGroup would be.
func (k *container) mount(t *testing.T, name, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	to := filepath.Join(k.root, "etc/kubernetes", name)
	require.NoError(t, os.WriteFile(to, data, 0o640))
	require.NoError(t, os.Chown(to, 0, nonroot))
}

// start runs the entry point with args. The environment is the image's and env.
func (k *container) start(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	all := append(slices.Clone(k.entry), args...)
	cmd := &exec.Cmd{
		Path: all[0], Args: all, Dir: "/",
		Env:    append(slices.Clone(k.env), env...),
		Stdout: k.log, Stderr: k.log,
		SysProcAttr: &syscall.SysProcAttr{
			Chroot:     k.root,
			Credential: &syscall.Credential{Uid: nonroot, Gid: nonroot},
			Pdeathsig:  syscall.SIGKILL,
		},
	}
	// The mounts are made in a name space of one thread, from which the process
	// is started. The thread must live until the process ends, because of
	// Pdeathsig, and ends with its goroutine, which never unlocks it: nothing of
	// the mounts reaches the rest of the machine.
	started, ended := make(chan error), make(chan struct{})
	t.Cleanup(func() { close(ended) })
	go func() {
		runtime.LockOSThread()
		err := k.isolate()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		<-ended
	}()
	require.NoError(t, <-started)
	return cmd
}

// isolate gives this thread mounts of its own: the image read-only, /opt not.
func (k *container) isolate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount name space: %w", err)
	}
	const ro = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	opt := filepath.Join(k.root, "opt")
	for _, m := range []struct {
		from, to string
		flags    uintptr
	}{
		{"none", "/", unix.MS_REC | unix.MS_PRIVATE},
		{k.root, k.root, unix.MS_BIND},
		{"none", k.root, ro},
		{k.opt, opt, unix.MS_BIND},
	} {
		if err := unix.Mount(m.from, m.to, "", m.flags, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m.to, err)
		}
	}
	return nil
}

// dial connects to the socket as kube-apiserver does.
func dial(t *testing.T, socket string) kmsapi.KeyManagementServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return kmsapi.NewKeyManagementServiceClient(conn)
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := freeport.Find()
	require.NoError(t, err)
	return port
}

// The image as HyperShift's sidecar: no command, its arguments, a read-only
// root, another user than root, a vault that only HTTPS_PROXY leads to.
func TestImage_ServesAsNonRootOnAReadOnlyRoot(t *testing.T) {
	k := newContainer(t, config(t))
	srv, err := vault.Start(vault.Config{})
	require.NoError(t, err)
	defer srv.Close()
	version, err := srv.Vault("kvimage").CreateKey("k1", vault.KeyOptions{Bits: 2048})
	require.NoError(t, err)
	azureJSON, err := srv.AzureJSON(t.TempDir())
	require.NoError(t, err)
	k.mount(t, "azure.json", azureJSON)
	k.mount(t, "ca.pem", srv.CAFile())

	healthz := freePort(t)
	env := append(srv.Env(), "SSL_CERT_FILE=/etc/kubernetes/ca.pem") // the last one counts
	cmd := k.start(t, env,
		"--keyvault-name=kvimage", "--key-name=k1", "--key-version="+version,
		"--listen-addr=unix:///opt/azurekmsactive.socket",
		"--healthz-port="+strconv.Itoa(healthz), "--metrics-addr="+strconv.Itoa(freePort(t)),
		"--healthz-path=/healthz", "--config-file-path=/etc/kubernetes/azure.json", "-v=1")
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	socket := filepath.Join(k.opt, "azurekmsactive.socket")
	kms := dial(t, socket)
	status, err := kms.Status(ctx, &kmsapi.StatusRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Equal(t, "ok", status.Healthz)

	// It is what it should be: another user, without capabilities, on a root
	// that cannot be written to.
	pid := cmd.Process.Pid
	proc, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	require.Contains(t, string(proc), "Uid:\t65532\t65532\t65532\t65532")
	require.Contains(t, string(proc), "CapEff:\t0000000000000000")
	require.Equal(t, "ro", mountOption(t, pid, "/"))
	require.Equal(t, "rw", mountOption(t, pid, "/opt"))

	seed := make([]byte, 32)
	rand.Read(seed)
	sealed, err := kms.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: seed, Uid: "1"})
	require.NoError(t, err)
	require.Equal(t, status.KeyId, sealed.KeyId)
	opened, err := kms.Decrypt(ctx, &kmsapi.DecryptRequest{Ciphertext: sealed.Ciphertext, KeyId: sealed.KeyId, Annotations: sealed.Annotations, Uid: "2"})
	require.NoError(t, err)
	require.Equal(t, seed, opened.Plaintext)

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/healthz", healthz), nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)

	// Nothing but /opt was written to, and the socket goes when the pod does.
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-exited:
		require.NoError(t, err)
	case <-ctx.Done():
		require.Fail(t, "the process did not end after SIGTERM")
	}
	_, err = os.Lstat(socket)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// mountOption returns "ro" or "rw" for a mount point as the process sees it:
// its /proc entry shows what lies under its own root.
func mountOption(t *testing.T, pid int, point string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	require.NoError(t, err)
	option := ""
	for line := range strings.Lines(string(data)) {
		// ID, parent, device, root, mount point, options.
		if f := strings.Fields(line); len(f) > 5 && f[4] == point {
			option, _, _ = strings.Cut(f[5], ",")
		}
	}
	require.NotEmpty(t, option, "no mount at %s in\n%s", point, data)
	return option
}

// "kubectl exec POD -- azure-kms-plugin -version" has no shell to search a path.
func TestImage_VersionByNameAlone(t *testing.T) {
	k := newContainer(t, config(t))
	require.Contains(t, k.env, "PATH=/")
	cmd := k.start(t, nil, "-version")
	require.NoError(t, cmd.Wait())
	out, err := os.ReadFile(k.log.Name())
	require.NoError(t, err)
	require.Contains(t, string(out), version)
}

// A Secret that the image's user may not read is the most common mistake with
// a non-root image; the message has to be enough to mend it.
func TestImage_NamesAFileThatItsUserMayNotRead(t *testing.T) {
	k := newContainer(t, config(t))
	name := filepath.Join(k.root, "etc/kubernetes/azure.json")
	require.NoError(t, os.WriteFile(name, []byte(`{"tenantId":"11111111-2222-3333-4444-555555555555","useManagedIdentityExtension":true}`), 0o600))
	cmd := k.start(t, nil,
		"--keyvault-name=kvimage", "--key-name=k1", "--key-version="+strings.Repeat("0", 32),
		"--listen-addr=unix:///opt/kms.socket", "--healthz-port="+strconv.Itoa(freePort(t)), "--metrics-addr=0")
	err := cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "%v", err)
	require.NotZero(t, exit.ExitCode())
	out, err := os.ReadFile(k.log.Name())
	require.NoError(t, err)
	for _, want := range []string{"/etc/kubernetes/azure.json", "65532", "600"} {
		require.Contains(t, string(out), want)
	}
	_, err = os.Lstat(filepath.Join(k.opt, "kms.socket"))
	require.ErrorIs(t, err, fs.ErrNotExist, "a local fault must end the process before the socket is made")
}
