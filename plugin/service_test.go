package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/plugin"
)

func TestStatus(t *testing.T) {
	for given, said := range map[string]string{"": "v2beta1", "v2beta1": "v2beta1", "v2": "v2"} {
		t.Run("version "+given, func(t *testing.T) {
			r := serve(t, func(c *plugin.Config) { c.APIVersion = given })
			resp := r.dial(t).status(t)
			require.Equal(t, "ok", resp.Healthz)
			require.Equal(t, said, resp.Version)
			require.Equal(t, ref(version1).KeyID(), resp.KeyId)
			require.Zero(t, r.keyring.calls.Load(), "Status must not call the vault")
		})
	}
}

// kube-apiserver goes on writing under a key ID that comes with a health text
// (kubernetes#138950), so bad health is an error and nothing else.
func TestStatus_NotReady(t *testing.T) {
	r := serve(t, func(c *plugin.Config) {
		c.Readiness = ready(func(context.Context) error {
			return &keyvault.Error{Op: keyvault.OpDecrypt, Key: ref(version1), Reason: keyvault.KeyDisabled, Text: "enable the version, restart nothing"}
		})
	})
	resp, err := r.dial(t).Status(in3s(t), &kmsapi.StatusRequest{})
	require.Nil(t, resp)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.Equal(t, "KeyDisabled: enable the version, restart nothing", status.Convert(err).Message())
	require.Equal(t, keyvault.KeyDisabled, r.observed()[0].Reason)
}

// Status comes back while a call into the vault hangs on the same connection.
func TestStatus_WhileTheVaultHangs(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	entered, release := make(chan struct{}, 2), make(chan struct{})
	r.keyring.do(func(context.Context) error { entered <- struct{}{}; <-release; return nil })
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			_, err := c.Encrypt(context.Background(), &kmsapi.EncryptRequest{Plaintext: seed()})
			if err != nil {
				t.Error(err)
			}
		})
	}
	<-entered
	<-entered
	for range 100 {
		require.Equal(t, "ok", c.status(t).Healthz)
	}
	require.EqualValues(t, 2, r.keyring.calls.Load())
	close(release)
	wg.Wait()
}

func TestEncrypt_UnderTheIDThatItsConnectionWasTold(t *testing.T) {
	id1, id2 := ref(version1).KeyID(), ref(version2).KeyID()
	r := serve(t)
	encrypt := func(c *client) string {
		e, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
		require.NoError(t, err)
		d, err := c.Decrypt(in3s(t), decryptOf(e))
		require.NoError(t, err)
		require.Equal(t, seed(), d.Plaintext)
		return e.KeyId
	}
	old, young := r.dial(t), r.dial(t)
	require.Equal(t, id1, old.status(t).KeyId)
	r.keyring.rotate(version2)
	require.Equal(t, id2, young.status(t).KeyId)
	require.Equal(t, id1, encrypt(old))
	require.Equal(t, id2, encrypt(young))
	require.Equal(t, id2, encrypt(r.dial(t)), "one that was told none")
	require.Equal(t, id2, old.status(t).KeyId)
	require.Equal(t, id2, encrypt(old))
}

// An outage in the middle of a switch: who has a seed under the old ID and none under
// the new one is told the old ID again. Nobody else is.
func TestStatus_UnfinishedSwitch(t *testing.T) {
	id1, id2 := ref(version1).KeyID(), ref(version2).KeyID()
	r := serve(t)
	encrypt := func(c *client) (string, error) {
		e, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
		return e.GetKeyId(), err
	}
	without, done := r.dial(t), r.dial(t)
	for _, c := range []*client{without, done} {
		require.Equal(t, id1, c.status(t).KeyId)
		_, err := encrypt(c)
		require.NoError(t, err)
	}
	r.keyring.rotate(version2)
	for _, c := range []*client{without, done} {
		require.Equal(t, id2, c.status(t).KeyId)
	}
	id, err := encrypt(done)
	require.NoError(t, err)
	require.Equal(t, id2, id)

	r.keyring.fail(&keyvault.Error{Op: keyvault.OpEncrypt, Reason: keyvault.Unreachable, Text: "away"})
	r.keyring.setUnfinished(true)
	_, err = encrypt(without)
	require.Error(t, err)
	require.Equal(t, id1, without.status(t).KeyId)
	require.Equal(t, id2, done.status(t).KeyId)
	require.Equal(t, id2, r.dial(t).status(t).KeyId, "a new connection was never told the old one")

	r.keyring.do(func(context.Context) error { return nil })
	r.keyring.setUnfinished(false)
	require.Equal(t, id2, without.status(t).KeyId)
	_, err = encrypt(without)
	require.NoError(t, err)
	r.keyring.setUnfinished(true)
	require.Equal(t, id2, without.status(t).KeyId, "not back, once it has a seed")
}

// An Encrypt under the new ID that is answered while the connection was told the old
// one again has given it a seed all the same: no later fault takes it back.
func TestStatus_SwitchThatEndsWhileTakenBack(t *testing.T) {
	id1, id2 := ref(version1).KeyID(), ref(version2).KeyID()
	r := serve(t)
	c := r.dial(t)
	require.Equal(t, id1, c.status(t).KeyId)
	r.keyring.rotate(version2)
	require.Equal(t, id2, c.status(t).KeyId)
	answer, asked := make(chan struct{}), make(chan struct{})
	r.keyring.do(func(context.Context) error { close(asked); <-answer; return nil })
	done := make(chan string)
	go func() {
		e, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
		assert.NoError(t, err)
		done <- e.GetKeyId()
	}()
	<-asked
	r.keyring.setUnfinished(true)
	require.Equal(t, id1, c.status(t).KeyId)
	close(answer)
	require.Equal(t, id2, <-done)
	for _, fault := range []bool{false, true, false, true} {
		r.keyring.setUnfinished(fault)
		require.Equal(t, id2, c.status(t).KeyId, "fault: %v", fault)
	}
}

// One that only asks for the status is told any number of IDs, and never goes back by
// more than the last switch. One that has a seed goes back to the ID of that.
func TestStatus_ManySwitchesWithoutASeed(t *testing.T) {
	r := serve(t)
	watcher, writer, late := r.dial(t), r.dial(t), r.dial(t)
	id1 := ref(version1).KeyID()
	for _, c := range []*client{watcher, writer, late} {
		require.Equal(t, id1, c.status(t).KeyId)
	}
	_, err := writer.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(t, err)
	// The answer of this one comes when all is over.
	answer, asked := make(chan struct{}), make(chan struct{})
	r.keyring.do(func(context.Context) error { close(asked); <-answer; return nil })
	done := make(chan error)
	go func() {
		_, err := late.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
		done <- err
	}()
	<-asked
	version := func(i int) string { return fmt.Sprintf("%032x", i) }
	for i := range 50 {
		r.keyring.rotate(version(i))
		for _, c := range []*client{watcher, writer, late} {
			c.status(t)
		}
	}
	close(answer)
	require.NoError(t, <-done)
	for range 2 {
		r.keyring.setUnfinished(true)
		require.Equal(t, ref(version(48)).KeyID(), watcher.status(t).KeyId)
		require.Equal(t, id1, writer.status(t).KeyId)
		require.Equal(t, id1, late.status(t).KeyId)
		r.keyring.setUnfinished(false)
		require.Equal(t, ref(version(49)).KeyID(), watcher.status(t).KeyId)
	}
}

// While no version is known, Status fails, and names no ID.
func TestStatus_NoVersionYet(t *testing.T) {
	r := serve(t)
	r.keyring.rotate("")
	_, err := r.dial(t).Status(in3s(t), &kmsapi.StatusRequest{})
	require.Error(t, err)
}

// G04: no Encrypt answer ever differs from the Status answer before it.
func TestEncrypt_AgreesWithStatusThroughARotation(t *testing.T) {
	r := serve(t)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 20 {
		c := r.dial(t)
		wg.Go(func() {
			<-start
			for i := range 25 {
				s, err := c.Status(context.Background(), &kmsapi.StatusRequest{})
				if err != nil {
					t.Error(err)
					return
				}
				e, err := c.Encrypt(context.Background(), &kmsapi.EncryptRequest{Plaintext: seed()})
				if err != nil {
					t.Error(err)
					return
				}
				if e.KeyId != s.KeyId || string(e.Annotations["key-version.azure.akv.io"]) != map[string]string{
					ref(version1).KeyID(): version1, ref(version2).KeyID(): version2,
				}[s.KeyId] {
					t.Errorf("round %d: told %s, answered under %s", i, s.KeyId, e.KeyId)
				}
				if i == 10 {
					r.keyring.rotate(version2)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	require.Equal(t, ref(version2).KeyID(), r.dial(t).status(t).KeyId)
}

func TestDecrypt_Hint(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	e, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(t, err)
	_, err = c.Decrypt(in3s(t), decryptOf(e))
	require.NoError(t, err)
	delete(e.Annotations, "key-version.azure.akv.io")
	_, err = c.Decrypt(in3s(t), decryptOf(e))
	require.NoError(t, err)
	require.Equal(t, []string{version1, ""}, r.keyring.hints)
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error { return proto.Unmarshal(b, v.(proto.Message)) }
func (rawCodec) Name() string                    { return "proto" }

// G01, G08: bad input is the caller's fault, costs no vault call, and harms
// nobody else.
func TestBadInput(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	e, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(t, err)
	before := r.keyring.calls.Load()

	decrypt := func(edit func(*kmsapi.DecryptRequest)) func() error {
		return func() error {
			req := proto.Clone(decryptOf(e)).(*kmsapi.DecryptRequest)
			edit(req)
			_, err := c.Decrypt(in3s(t), req)
			return err
		}
	}
	encrypt := func(plaintext []byte) func() error {
		return func() error {
			_, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: plaintext})
			return err
		}
	}
	raw := func(method string, b []byte) func() error {
		return func() error {
			return c.conn.Invoke(in3s(t), "/v2.KeyManagementService/"+method, b, &emptypb.Empty{}, grpc.ForceCodec(rawCodec{}))
		}
	}
	for name, tc := range map[string]struct {
		call  func() error
		names string // what the error says
	}{
		"decrypt: nothing at all":       {func() error { _, err := c.Decrypt(in3s(t), nil); return err }, "key ID is empty"},
		"decrypt: nil ciphertext":       {decrypt(func(q *kmsapi.DecryptRequest) { q.Ciphertext = nil }), "ciphertext is empty"},
		"decrypt: empty ciphertext":     {decrypt(func(q *kmsapi.DecryptRequest) { q.Ciphertext = []byte("") }), "ciphertext is empty"},
		"decrypt: one byte":             {decrypt(func(q *kmsapi.DecryptRequest) { q.Ciphertext = []byte{1} }), "1 bytes"},
		"decrypt: not base64url":        {decrypt(func(q *kmsapi.DecryptRequest) { q.Ciphertext[3] = '+' }), "base64url"},
		"decrypt: cut":                  {decrypt(func(q *kmsapi.DecryptRequest) { q.Ciphertext = q.Ciphertext[:341] }), "341 bytes"},
		"decrypt: a megabyte":           {decrypt(func(q *kmsapi.DecryptRequest) { q.Ciphertext = make([]byte, 1<<20) }), "1048576 bytes"},
		"decrypt: no annotations":       {decrypt(func(q *kmsapi.DecryptRequest) { q.Annotations = nil }), "version.azure.akv.io is missing"},
		"decrypt: format of the future": {decrypt(func(q *kmsapi.DecryptRequest) { q.Annotations["version.azure.akv.io"] = []byte("2") }), "version.azure.akv.io"},
		"decrypt: KMS v1's algorithm":   {decrypt(func(q *kmsapi.DecryptRequest) { q.Annotations["algorithm.azure.akv.io"] = []byte("RSA1_5") }), "algorithm.azure.akv.io"},
		"decrypt: bulky annotations":    {decrypt(func(q *kmsapi.DecryptRequest) { q.Annotations["a.b"] = make([]byte, 33<<10) }), "annotations have"},
		"decrypt: empty key ID":         {decrypt(func(q *kmsapi.DecryptRequest) { q.KeyId = "" }), "key ID is empty"},
		"decrypt: foreign key ID":       {decrypt(func(q *kmsapi.DecryptRequest) { q.KeyId = "arn:aws:kms:x" }), "another plugin"},
		"decrypt: key ID in upper case": {decrypt(func(q *kmsapi.DecryptRequest) { q.KeyId = strings.ToUpper(q.KeyId) }), "key ID"},
		"decrypt: endless key ID":       {decrypt(func(q *kmsapi.DecryptRequest) { q.KeyId = strings.Repeat("a", 1<<20) }), "key ID"},
		"decrypt: unknown fields only":  {raw("Decrypt", []byte{0xfa, 0x3e, 3, 'a', 'b', 'c'}), "key ID is empty"},
		"decrypt: no message":           {raw("Decrypt", []byte{0x0a, 0xff, 0xff}), "not a KMS v2 message"},
		"decrypt: uid is no text":       {raw("Decrypt", []byte{0x12, 1, 0xff}), "not a KMS v2 message"},
		"encrypt: nothing at all":       {func() error { _, err := c.Encrypt(in3s(t), nil); return err }, "plaintext is empty"},
		"encrypt: empty plaintext":      {encrypt([]byte("")), "plaintext is empty"},
		"encrypt: too long":             {encrypt(make([]byte, 447)), "447 bytes"},
		"encrypt: a megabyte":           {encrypt(make([]byte, 1<<20)), "1048576 bytes"},
		"encrypt: no message":           {raw("Encrypt", []byte("\xff\xff\xff")), "not a KMS v2 message"},
		"status: no message":            {raw("Status", []byte("\xff\xff\xff")), "not a KMS v2 message"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := len(r.observed())
			err := tc.call()
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			require.ErrorContains(t, err, "BadRequest: ")
			require.ErrorContains(t, err, tc.names)
			require.LessOrEqual(t, len(status.Convert(err).Message()), 1024)
			require.Equal(t, before, r.keyring.calls.Load(), "the vault was called")
			require.Len(t, r.observed(), seen+1)
			require.Equal(t, keyvault.BadRequest, r.observed()[seen].Reason)
			require.Empty(t, r.observed()[seen].KeyID)
		})
	}
	t.Run("beyond any size", func(t *testing.T) {
		require.Equal(t, codes.ResourceExhausted, status.Code(encrypt(make([]byte, 3<<20))()))
	})
	t.Run("an unknown key", func(t *testing.T) {
		err := decrypt(func(q *kmsapi.DecryptRequest) { q.KeyId = strings.Repeat("0a", 32) })()
		require.Equal(t, codes.NotFound, status.Code(err))
		require.ErrorContains(t, err, "UnknownKey: ")
		last := r.observed()[len(r.observed())-1]
		require.Empty(t, last.KeyID, "a caller could make up any number of labels")
	})
	_, err = c.Decrypt(in3s(t), decryptOf(e))
	require.NoError(t, err, "the process lives")
}

func TestOpenShift_TooLong(t *testing.T) {
	r := serve(t, func(c *plugin.Config) { c.Format = plugin.OpenShift })
	_, err := r.dial(t).Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: make([]byte, 335)})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "334")
	require.Zero(t, r.keyring.calls.Load())
}

// An openshift block that holds no base64url text is a bad object, not a bad key.
func TestDecrypt_OpenShiftBlockWithoutText(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	block, _, err := r.keyring.Encrypt(t.Context(), r.keyring.KeyID(""), []byte("=="))
	require.NoError(t, err)
	e, err := c.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
	require.NoError(t, err)
	e.Ciphertext = block
	_, err = c.Decrypt(in3s(t), decryptOf(e))
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "BadCiphertext: ")
}

// G02: what kube-apiserver would refuse does not leave.
func TestEncrypt_AnswerIsChecked(t *testing.T) {
	for _, n := range []int{0, 1, 255, 1025} {
		r := serve(t, func(c *plugin.Config) { c.Format = plugin.OpenShift })
		r.keyring.block = make([]byte, n)
		if n == 0 {
			r.keyring.block = []byte{}
		}
		_, err := r.dial(t).Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: seed()})
		require.Equal(t, codes.Internal, status.Code(err), "block of %d bytes", n)
	}
}

// Every reason has a code that says something, and it is the code alone that
// kube-apiserver's metrics show.
func TestCodes(t *testing.T) {
	want := map[codes.Code][]keyvault.Reason{
		codes.FailedPrecondition: {keyvault.KeyDisabled, keyvault.KeyDeleted, keyvault.KeyNotFound, keyvault.VaultNotFound, keyvault.KeyExpired, keyvault.KeyNotYetValid},
		codes.PermissionDenied:   {keyvault.AccessDenied, keyvault.NetworkDenied, keyvault.OperationNotPermitted, keyvault.CredentialsRefused},
		codes.Unavailable:        {keyvault.Unreachable, keyvault.CredentialsUnavailable, keyvault.Unknown},
		codes.ResourceExhausted:  {keyvault.Throttled},
		codes.InvalidArgument:    {keyvault.BadCiphertext, keyvault.BadRequest},
		codes.NotFound:           {keyvault.UnknownKey},
		codes.Canceled:           {keyvault.Canceled},
	}
	mapped := 0
	for code, reasons := range want {
		for _, reason := range reasons {
			err := fmt.Errorf("decrypting: %w", &keyvault.Error{Reason: reason, Text: "what to mend"})
			st, got := plugin.StatusOf(err)
			require.Equal(t, code, st.Code(), reason)
			require.Equal(t, reason, got)
			require.Equal(t, string(reason)+": what to mend", st.Message())
			mapped++
		}
	}
	require.Equal(t, len(keyvault.Reasons())-1, mapped, "a reason is missing above")

	for err, code := range map[error]codes.Code{
		errors.New("secret"):                      codes.Internal,
		status.Error(codes.Unknown, "secret"):     codes.Internal,
		context.Canceled:                          codes.Canceled,
		context.DeadlineExceeded:                  codes.DeadlineExceeded,
		&keyvault.Error{Reason: "New", Text: "t"}: codes.Internal,
	} {
		st, _ := plugin.StatusOf(err)
		require.Equal(t, code, st.Code())
		require.NotContains(t, st.Message(), "secret")
		require.Contains(t, st.Message(), ": ")
	}
}

// A caller that gives up is told so at once, and the keyring sees it.
func TestCallerGivesUp(t *testing.T) {
	r := serve(t)
	seen := make(chan struct{})
	r.keyring.do(func(ctx context.Context) error { <-ctx.Done(); close(seen); return ctx.Err() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := r.dial(t).Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: seed()})
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	<-seen
}

// KMS v1, and anything else, is refused; the log says once where to read.
func TestOtherAPIs(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	for range 3 {
		for _, method := range []string{"/v1beta1.KeyManagementService/Version", "/v1beta1.KeyManagementService/Decrypt"} {
			err := c.conn.Invoke(in3s(t), method, &emptypb.Empty{}, &emptypb.Empty{})
			require.Equal(t, codes.Unimplemented, status.Code(err))
			require.ErrorContains(t, err, "apiVersion v2")
		}
	}
	require.Equal(t, 1, strings.Count(r.log.String(), "KMS v1 is not served"))
	for _, method := range []string{"/v2.KeyManagementService/Rewrap", "/grpc.health.v1.Health/Check"} {
		err := c.conn.Invoke(in3s(t), method, &emptypb.Empty{}, &emptypb.Empty{})
		require.Equal(t, codes.Unimplemented, status.Code(err))
	}
}

func TestConfig_AllFaultsAtOnce(t *testing.T) {
	_, err := plugin.New(plugin.Config{
		APIVersion: "v3", Format: 7, StopGrace: -1,
		Socket: plugin.SocketConfig{Address: "tcp://0.0.0.0:1"},
	})
	for _, part := range []string{"keyring", "readiness", "v3", "format", "grace", "tcp://0.0.0.0:1"} {
		require.ErrorContains(t, err, part)
	}
}
