package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/test/vault"
)

// G01, through everything: an Encrypt that is too long for this key, though not
// for the longest that there is, is the caller's fault and harms nobody.
func TestServe_TooLongForThisKey(t *testing.T) {
	l := startLab(t, nil, nil)
	l.roundTrip(t)
	client := l.client(t)
	for range 5 {
		_, err := client.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: make([]byte, 191), Uid: "u"})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	}
	_, err := client.Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: make([]byte, 190), Uid: "u"})
	require.NoError(t, err, "the breaker stays closed")
	code, body := get(t, l.health+"/readyz")
	require.Equal(t, 200, code, body)
}

// G02: whatever the vault's headers are, what is stored is ours and small.
func TestServe_HeadersAreNotStored(t *testing.T) {
	srv, v, _ := newVault(t, vault.Config{})
	version, err := v.CreateKey("k1", vault.KeyOptions{Bits: 4096})
	require.NoError(t, err)
	l := startIn(t, &lab{srv: srv, vault: v, version: version}, shortDir(t), nil)
	l.roundTrip(t)
	for name, header := range map[string]map[string]string{
		"40 kB":         {"x-ms-request-id": strings.Repeat("r", 40<<10)},
		"not ASCII":     {"x-ms-request-id": "r\u00e9q\tid", "x-ms-keyvault-region": strings.Repeat("x", 2000)},
		"with line end": {"x-ms-request-id": "a\r\n b"},
		"absent":        {"x-ms-request-id": "", "x-ms-keyvault-region": "", "Date": ""},
	} {
		t.Run(name, func(t *testing.T) {
			l.srv.ClearFaults()
			l.srv.AddFault(vault.Fault{Header: header})
			e := l.encrypt(t, []byte(seed))
			require.Len(t, e.Ciphertext, 683)
			require.Len(t, e.KeyId, 64)
			require.Equal(t, map[string][]byte{
				"version.azure.akv.io": []byte("1"), "algorithm.azure.akv.io": []byte("RSA-OAEP-256"), "key-version.azure.akv.io": []byte(version),
			}, e.Annotations)
			d, err := l.client(t).Decrypt(in3s(t), decryptOf(e))
			require.NoError(t, err)
			require.Equal(t, seed, string(d.Plaintext))

			l.srv.AddFault(vault.Fault{Op: "encrypt", Status: 400, Code: "Strange", Times: 1})
			_, err = l.client(t).Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: []byte(seed)})
			require.Error(t, err)
			require.Less(t, len(err.Error()), 500)
			require.NotContains(t, err.Error(), "\n")
			require.Eventually(t, func() bool {
				_, err := l.client(t).Encrypt(in3s(t), &kmsapi.EncryptRequest{Plaintext: []byte(seed)})
				return err == nil
			}, patience, 50*time.Millisecond)
		})
	}
	require.Less(t, len(l.stderr.String()), 20<<10)
}

// G03, through everything: failing Decrypts end in time and leave nothing.
func TestServe_ManyFailures(t *testing.T) {
	l := startLab(t, nil, nil)
	l.roundTrip(t)
	client := l.client(t)
	var requests []*kmsapi.DecryptRequest
	for range 16 {
		requests = append(requests, decryptOf(l.encrypt(t, []byte(seed))))
	}
	storm := func() (failed int32) {
		var wg sync.WaitGroup
		var n, bad atomic.Int32
		for range 50 {
			wg.Go(func() {
				for i := n.Add(1); i <= 2000; i = n.Add(1) {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					_, err := client.Decrypt(ctx, requests[i%16])
					cancel()
					switch status.Code(err) {
					case codes.OK:
					case codes.Unavailable:
						bad.Add(1)
					default:
						t.Errorf("got %v", err)
					}
				}
			})
		}
		wg.Wait()
		return bad.Load()
	}
	require.Zero(t, storm()) // opens the connections that are kept
	base := goroutines(t, l)
	id := l.srv.AddFault(vault.Fault{Op: "decrypt", Status: 500, Body: strings.Repeat("x", 64<<10)})
	require.EqualValues(t, 2000, storm())
	l.srv.RemoveFault(id)
	require.Eventually(t, func() bool {
		_, err := client.Decrypt(in3s(t), requests[0])
		return err == nil
	}, patience, 20*time.Millisecond, "the breaker asks once a second")
	require.Eventually(t, func() bool { return goroutines(t, l) <= base+10 }, 5*time.Second, 50*time.Millisecond)
	require.Zero(t, storm())
}

func goroutines(t *testing.T, l *lab) int {
	_, series := get(t, l.metrics)
	for line := range strings.Lines(series) {
		if n, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			i, err := strconv.Atoi(strings.TrimSpace(n))
			require.NoError(t, err)
			return i
		}
	}
	require.FailNow(t, "no go_goroutines")
	return 0
}

// G05, through everything: a hundred callers and a refused token cost one
// sign-in, and the one who leaves harms nobody.
func TestServe_OneSignInForAll(t *testing.T) {
	l := startLab(t, nil, nil)
	l.roundTrip(t)
	l.usable(t)
	l.srv.RevokeTokens()
	l.srv.AddFault(vault.Fault{Op: vault.OpToken, Delay: 500 * time.Millisecond})
	l.srv.ResetCalls()
	client := l.client(t)
	_, err := client.Status(in3s(t), &kmsapi.StatusRequest{})
	require.NoError(t, err)
	first, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var firstErr error
	wg.Go(func() {
		_, firstErr = client.Encrypt(first, &kmsapi.EncryptRequest{Plaintext: []byte(seed)})
	})
	require.Eventually(t, func() bool { return l.srv.Calls()["encrypt"] == 1 }, patience, time.Millisecond)
	for range 99 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if _, err := client.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: []byte(seed)}); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return l.srv.Calls()["token"] == 1 }, patience, time.Millisecond)
	leave()
	wg.Wait()
	require.Equal(t, codes.Canceled, status.Code(firstErr))
	require.Equal(t, 1, l.srv.Calls()["token"])
	_, series := get(t, l.metrics)
	require.Contains(t, series, `azure_kms_vault_requests_total{operation="encrypt",reason="Unreachable"} 0`+"\n")
	code, body := get(t, l.health+"/readyz")
	require.Equal(t, 200, code, body)
}

// G06, through everything: a start of kube-apiserver.
func TestServe_Burst(t *testing.T) {
	l := startLab(t, nil, nil)
	l.roundTrip(t)
	var requests []*kmsapi.DecryptRequest
	for i := range 40 {
		requests = append(requests, decryptOf(l.encrypt(t, fmt.Appendf(nil, "seed %02d", i))))
	}
	l.srv.AddFault(vault.Fault{Op: "decrypt", Above: 200, Status: 429})
	l.srv.AddFault(vault.Fault{Op: "decrypt", Delay: 40 * time.Millisecond})
	l.srv.ResetCalls()
	client := l.client(t)
	var wg sync.WaitGroup
	for i := range 600 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			req := proto.Clone(requests[i%40]).(*kmsapi.DecryptRequest)
			req.Uid = strconv.Itoa(i) // must not keep equal requests apart
			d, err := client.Decrypt(ctx, req)
			if err != nil || string(d.Plaintext) != fmt.Sprintf("seed %02d", i%40) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	_, err := l.status(t)
	require.NoError(t, err, "Status is not starved")
	wg.Wait()
	require.Less(t, l.srv.Calls()["decrypt"], 400)
	_, most := l.srv.InFlight()
	require.LessOrEqual(t, most, 64+2)
}

// A denied list is optional: that is said, with what it costs and what to mend.
func TestServe_ListingDenied(t *testing.T) {
	l := startLab(t, nil, nil)
	e := l.encrypt(t, []byte(seed))
	require.NoError(t, l.vault.Allow(l.srv.ClientID, vault.PermEncrypt, vault.PermDecrypt, vault.PermGet))
	req := decryptOf(e)
	req.KeyId = strings.Repeat("0a", 32)
	_, err := l.client(t).Decrypt(in3s(t), req)
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	require.Eventually(t, func() bool {
		return strings.Contains(l.stderr.String(), "the versions of the key cannot be listed: that is optional")
	}, 10*time.Second, 10*time.Millisecond)
	_, line, _ := strings.Cut(l.stderr.String(), "the versions of the key cannot be listed")
	line, _, _ = strings.Cut(line, "\n")
	require.Contains(t, line, `"reason": "AccessDenied"`)
	require.Contains(t, line, `grant it the key permission \"list\"`)
}

// G08: data of an older version, and such that is not ours.
func TestServe_OlderVersionAndUnknownKeys(t *testing.T) {
	old := startLab(t, nil, nil)
	e := old.encrypt(t, []byte(seed))
	v2, err := old.vault.CreateKey("k1", vault.KeyOptions{})
	require.NoError(t, err)
	l := startIn(t, &lab{srv: old.srv, vault: old.vault, version: v2}, shortDir(t), nil).usable(t)
	client := l.client(t)
	l.srv.ResetCalls()
	decrypts := func() int { return l.srv.Calls()["decrypt"] }

	for range 50 {
		req := decryptOf(e)
		req.KeyId = strings.Repeat("0a", 32)
		_, err := client.Decrypt(in3s(t), req)
		require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	}
	for name, value := range map[string]string{"version.azure.akv.io": "2", "algorithm.azure.akv.io": "RSA1_5"} {
		for _, missing := range []bool{true, false} {
			req := decryptOf(e)
			if req.Annotations[name] = []byte(value); missing {
				delete(req.Annotations, name)
			}
			_, err := client.Decrypt(in3s(t), req)
			require.Equal(t, codes.InvalidArgument, status.Code(err))
			require.ErrorContains(t, err, name)
		}
	}
	require.Zero(t, decrypts())
	require.Equal(t, 1, l.srv.Calls()["list"], "one look for an unknown ID a minute")
	_, series := get(t, l.metrics)
	require.Contains(t, series, `azure_kms_requests_total{key_id_hash="unknown",operation="decrypt",reason="UnknownKey"} 50`+"\n")
	require.Contains(t, series, `azure_kms_requests_total{key_id_hash="unknown",operation="decrypt",reason="BadRequest"} 4`+"\n")
	code, body := get(t, l.health+"/readyz")
	require.Equal(t, 200, code, body)
	_, err = l.status(t)
	require.NoError(t, err)

	for _, hint := range []bool{true, false} {
		req := decryptOf(e)
		if !hint { // as the existing plugins wrote it
			delete(req.Annotations, "key-version.azure.akv.io")
		}
		before := l.srv.Count(vault.Match{Op: "decrypt", Version: old.version})
		d, err := client.Decrypt(in3s(t), req)
		require.NoError(t, err)
		require.Equal(t, seed, string(d.Plaintext))
		require.Equal(t, before+1, l.srv.Count(vault.Match{Op: "decrypt", Version: old.version}))
	}
	require.Zero(t, l.srv.Count(vault.Match{Op: "decrypt", Version: v2}))
}
