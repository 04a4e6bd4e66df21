package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"
)

// A caller makes calls that may fail, within kube-apiserver's time and on one
// connection.
type caller struct {
	t      *testing.T
	client kmsapi.KeyManagementServiceClient
}

func (l *lab) caller(t *testing.T) caller { return caller{t, l.client(t)} }

func (c caller) encrypt() error {
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Second)
	defer cancel()
	_, err := c.client.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: []byte(seed), Uid: "u"})
	return err
}

func (c caller) decrypt(e *kmsapi.EncryptResponse) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Second)
	defer cancel()
	d, err := c.client.Decrypt(ctx, decryptOf(e))
	if err == nil {
		assert.Equal(c.t, seed, string(d.Plaintext))
	}
	return err
}

// metric is the value of a series.
func (l *lab) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, series := get(t, l.metrics)
	for line := range strings.Lines(series) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			require.NoError(t, err)
			return f
		}
	}
	require.FailNow(t, "no series "+name)
	return 0
}

// Case K01, through everything: a reason for each kind of 403, as the first word
// and as a label, asked for once; and an end without a restart.
func TestServe_KindsOf403(t *testing.T) {
	l := startLab(t, nil, nil).usable(t)
	c := l.caller(t)
	e := l.encrypt(t, []byte(seed))
	calls := map[vault.Op]func() error{vault.OpEncrypt: c.encrypt, vault.OpDecrypt: func() error { return c.decrypt(e) }}
	for _, row := range []struct {
		op     vault.Op
		inner  string
		reason keyvault.Reason
		code   codes.Code
	}{
		{vault.OpEncrypt, "AccessDenied", keyvault.AccessDenied, codes.PermissionDenied},
		{vault.OpEncrypt, "ForbiddenByPolicy", keyvault.AccessDenied, codes.PermissionDenied},
		{vault.OpEncrypt, "ForbiddenByRbac", keyvault.AccessDenied, codes.PermissionDenied},
		{vault.OpEncrypt, "ForbiddenByFirewall", keyvault.NetworkDenied, codes.PermissionDenied},
		{vault.OpEncrypt, "ForbiddenByConnection", keyvault.NetworkDenied, codes.PermissionDenied},
		{vault.OpEncrypt, "KeyOperationForbidden", keyvault.OperationNotPermitted, codes.PermissionDenied},
		{vault.OpEncrypt, "KeyDisabled", keyvault.KeyDisabled, codes.FailedPrecondition},
		{vault.OpEncrypt, "KeyExpired", keyvault.KeyExpired, codes.FailedPrecondition},
		{vault.OpEncrypt, "KeyNotYetValid", keyvault.KeyNotYetValid, codes.FailedPrecondition},
		{vault.OpDecrypt, "AccessDenied", keyvault.AccessDenied, codes.PermissionDenied},
	} {
		call := calls[row.op]
		t.Run(string(row.op)+"/"+row.inner, func(t *testing.T) {
			label := fmt.Sprintf(`azure_kms_vault_requests_total{operation="%s",reason="%s"}`, row.op, row.reason)
			before := l.metric(t, label)
			id := l.srv.AddFault(vault.Fault{Op: row.op, InnerCode: row.inner})
			l.srv.ResetCalls()
			err := call()
			require.Equal(t, row.code, status.Code(err))
			require.ErrorContains(t, err, string(row.reason)+": ")
			require.ErrorContains(t, err, "Forbidden/"+row.inner+", request ")
			for _, secret := range []string{"eyJ", l.srv.ClientID, l.srv.TenantID, "subscriptions"} {
				require.NotContains(t, err.Error(), secret)
			}
			require.Equal(t, 1, l.srv.Count(vault.Match{Op: row.op}), "not tried again")
			require.Equal(t, before+1, l.metric(t, label))
			l.srv.RemoveFault(id)
			require.Eventually(t, func() bool { return call() == nil }, patience, 50*time.Millisecond)
		})
	}
}

// A 403 whose body is no error of a vault's denies nothing: it is that of a proxy, which
// is a fault of the way there.
func TestServe_PageWith403(t *testing.T) {
	l := startLab(t, nil, nil).usable(t)
	c := l.caller(t)
	e := l.encrypt(t, []byte(seed))
	l.srv.AddFault(vault.Fault{
		Op: vault.OpDecrypt, Status: 403, Body: "<html><body>PAGECANARY</body></html>", ContentType: "text/html",
		Header: map[string]string{"x-ms-request-id": "", "x-ms-keyvault-service-version": ""},
	})
	err := c.decrypt(e)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "Unreachable: ")
	require.ErrorContains(t, err, "http 403")
	require.NotContains(t, err.Error(), "PAGECANARY")
	l.srv.ClearFaults()
	require.Eventually(t, func() bool { return c.decrypt(e) == nil }, patience, 50*time.Millisecond)
}

// Case K03, through everything: the expiry is announced; an expired key decrypts and
// does not encrypt, and so does one whose time has not come.
func TestServe_ExpiredKeyDecrypts(t *testing.T) {
	start, expires := time.Now(), time.Now().Add(72*time.Hour).Truncate(time.Second)
	l := startLab(t, func(_ *vault.Server, v *vault.Vault) {
		require.NoError(t, v.SetExpires("k1", "", expires))
	}, nil, "--log-format-json").usable(t)
	c := l.caller(t)
	l.await(t, `"the key version will expire, .*"expires":"`+expires.UTC().Format("2006-01-02T15:04:05"))
	require.EqualValues(t, expires.Unix(), l.metric(t, "azure_kms_key_expiry_timestamp_seconds"))
	require.EqualValues(t, 1, l.metric(t, "azure_kms_metadata_access"))
	// The first look comes five seconds after the first decrypt.
	decrypted, got := l.metric(t, "azure_kms_probe_decrypt_timestamp_seconds"), l.metric(t, "azure_kms_probe_get_timestamp_seconds")
	require.GreaterOrEqual(t, decrypted, float64(start.Unix()))
	require.Greater(t, got, decrypted)
	require.LessOrEqual(t, got, float64(time.Now().Unix()))
	require.InDelta(t, got, l.metric(t, "azure_kms_newest_version_poll_timestamp_seconds"), 1.5)
	e := l.encrypt(t, []byte(seed))
	for reason, change := range map[keyvault.Reason]func(time.Duration) error{
		keyvault.KeyExpired:     func(d time.Duration) error { return l.vault.SetExpires("k1", "", time.Now().Add(-d)) },
		keyvault.KeyNotYetValid: func(d time.Duration) error { return l.vault.SetNotBefore("k1", "", time.Now().Add(d)) },
	} {
		t.Run(string(reason), func(t *testing.T) {
			require.NoError(t, change(-72*time.Hour))
			require.NoError(t, c.encrypt())
			require.NoError(t, change(time.Hour))
			err := c.encrypt()
			require.Equal(t, codes.FailedPrecondition, status.Code(err))
			require.ErrorContains(t, err, string(reason)+": ")
			require.ErrorContains(t, err, "so it only decrypts")
			for range 5 {
				require.NoError(t, c.decrypt(e))
			}
			s, err := l.status(t)
			require.NoError(t, err)
			require.Equal(t, "ok", s.Healthz)
			require.Contains(t, l.stderr.String(), "key decrypts but refuses to encrypt")
			require.Zero(t, l.metric(t, "azure_kms_key_usable"), "no new seed can be had")

			require.NoError(t, change(-72*time.Hour))
			require.Eventually(t, func() bool { return c.encrypt() == nil }, patience, 50*time.Millisecond)
		})
	}
}

// Case K05, through everything: deleted and purged are told apart, the key that
// comes back works without a restart, and a key made anew under the name is never
// asked for older data.
func TestServe_DeletedKey(t *testing.T) {
	srv, v, version := newVault(t, vault.Config{DeleteDelay: -1})
	l := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), nil).usable(t)
	c := l.caller(t)
	e := l.encrypt(t, []byte(seed))
	require.NoError(t, v.DeleteKey("k1"))
	err := c.decrypt(e)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "KeyDeleted: ")
	require.ErrorContains(t, err, "can be recovered until 20")
	require.ErrorContains(t, err, "do not purge it")
	code, body := get(t, l.health+"/readyz")
	require.Equal(t, 503, code)
	require.Contains(t, body, "do not purge it")
	require.Contains(t, l.stderr.String(), "do not purge it")

	require.NoError(t, v.RecoverKey("k1"))
	require.Eventually(t, func() bool { return c.decrypt(e) == nil }, patience, 50*time.Millisecond)

	require.NoError(t, v.PurgeKey("k1"))
	anew, err := v.CreateKey("k1", vault.KeyOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		err := c.decrypt(e)
		return err != nil && strings.Contains(err.Error(), "KeyNotFound: ") && strings.Contains(err.Error(), "made anew under the same name")
	}, patience, 200*time.Millisecond)
	require.Zero(t, srv.Count(vault.Match{Op: vault.OpDecrypt, Version: anew}))
	require.Zero(t, srv.Count(vault.Match{Op: vault.OpEncrypt, Version: anew}))
}

// Case K07, through everything: one fault is survived inside the call by one call
// more, and a run of them is Unavailable with its cause, not a deadline.
func TestServe_OneFaultInTime(t *testing.T) {
	l := startLab(t, nil, nil).usable(t)
	c := l.caller(t)
	e := l.encrypt(t, []byte(seed))
	for _, f := range []vault.Fault{{Status: 503}, {Status: 500}, {Status: 502}, {Status: 504}, {Status: 408}, {Reset: true}} {
		f.Op, f.Times = vault.OpDecrypt, 1
		l.srv.ResetCalls()
		l.srv.AddFault(f)
		require.NoError(t, c.decrypt(e), f)
		require.Equal(t, 2, l.srv.Calls()["decrypt"], f)
	}
	l.srv.AddFault(vault.Fault{Op: vault.OpDecrypt, Status: 503})
	for range 5 {
		err := c.decrypt(e)
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.ErrorContains(t, err, "Unreachable: ")
		require.ErrorContains(t, err, "http 503")
		require.NotContains(t, err.Error(), "deadline")
	}
}

// Case K10, through everything: slow answers end with the call and leave nothing
// behind, and twenty health checks meanwhile cost the vault no call of theirs.
func TestServe_SlowAnswers(t *testing.T) {
	l := startLab(t, nil, nil, "--healthz-mode=key", "--healthz-timeout=2s").usable(t)
	c := l.caller(t)
	e := l.encrypt(t, []byte(seed))
	require.NoError(t, c.decrypt(e))
	base := goroutines(t, l)
	for name, f := range map[string]vault.Fault{
		"3.5 s": {Delay: 3500 * time.Millisecond}, "a minute": {Delay: time.Minute}, "byte by byte": {SlowBody: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			f.Op = vault.OpDecrypt
			l.srv.ResetCalls()
			l.srv.AddFault(f)
			defer l.srv.ClearFaults()
			failed := make(chan error, 1)
			go func() { failed <- c.decrypt(e) }()
			require.Eventually(t, func() bool { return l.srv.Calls()["decrypt"] == 1 }, patience, time.Millisecond)
			var probes sync.WaitGroup
			for range 20 {
				probes.Go(func() {
					resp, err := http.Get(l.health + "/healthz")
					if assert.NoError(t, err) {
						resp.Body.Close()
					}
				})
			}
			probes.Wait()
			calls := l.srv.Calls()
			require.Equal(t, []int{1, 0, 0}, []int{calls["decrypt"], calls["get"], calls["encrypt"]})
			require.Empty(t, failed, "the checks did not wait for the vault")

			err := <-failed
			for tries := 0; status.Code(err) == codes.DeadlineExceeded && tries < 3; tries++ {
				err = c.decrypt(e) // this machine stood still for the moment in which the answer came
			}
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			require.Regexp(t, `no answer from kvlab.vault.azure.net within 2\.\d s`, err.Error()) // 2.9 where nobody else wants the machine
			require.Eventually(t, func() bool {
				return slices.ContainsFunc(l.srv.Requests(), func(r vault.Request) bool { return r.Op == vault.OpDecrypt && r.Cancelled })
			}, patience, 5*time.Millisecond, "the vault saw the caller leave")
			l.srv.ClearFaults()
			require.Eventually(t, func() bool { return c.decrypt(e) == nil }, patience, 50*time.Millisecond)
			require.Eventually(t, func() bool { return goroutines(t, l) <= base+10 }, 5*time.Second, 50*time.Millisecond)
		})
	}
}

// Case K11, through everything: a success without its content is an error, the
// process lives on and does not grow with what it is sent.
func TestServe_SuccessWithMissingFields(t *testing.T) {
	l := startLab(t, nil, nil).usable(t)
	c := l.caller(t)
	e := l.encrypt(t, []byte(seed))
	kid := l.ref().URL()
	for name, f := range map[string]vault.Fault{
		"nothing":       {Body: `{}`},
		"no kid":        {Body: `{"kid":null}`},
		"value only":    {Body: `{"value":"AAAA"}`},
		"not base64url": {Body: `{"kid":"` + kid + `","value":"CANARY!"}`},
		"empty":         {Status: 200, NoBody: true},
		"cut":           {Body: `{"kid":"` + kid + `","value":"AAAA"}`, Cut: true},
		"100 MB":        {Body: `{"kid":"` + kid + `","value":"`, BodySize: 100 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			f.Op = vault.OpDecrypt
			l.srv.AddFault(f)
			err := c.decrypt(e)
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			require.NotContains(t, err.Error(), "CANARY")
			l.srv.ClearFaults()
			require.Eventually(t, func() bool { return c.decrypt(e) == nil }, patience, 50*time.Millisecond)
		})
	}
	require.NotContains(t, l.stderr.String(), "panic")
	require.Less(t, l.metric(t, "process_resident_memory_bytes"), 128e6, "of a test binary")
	select {
	case <-l.done:
		require.Fail(t, "the process has ended")
	default:
	}
}
