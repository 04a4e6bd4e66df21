package main

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"
)

// following are arguments that follow the newest version at a test's pace.
func following(args ...string) []string {
	return append([]string{"--key-url=https://kvlab.vault.azure.net/keys/k1", "--activation-delay=4s", "--poll-interval=1s", "--log-format-json"}, args...)
}

// await waits for a line in the program's log.
func (l *lab) await(t *testing.T, pattern string) {
	t.Helper()
	line := regexp.MustCompile(pattern)
	require.Eventually(t, func() bool { return line.MatchString(l.stderr.String()) }, patience, 5*time.Millisecond, pattern)
}

// throughout checks again and again for a while. require.Never may leave its last check
// running when the test ends, and the program with it.
func throughout(d time.Duration, check func()) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		check()
	}
}

// write encrypts as a kube-apiserver with a connection of its own does.
func write(t *testing.T, client kmsapi.KeyManagementServiceClient) *kmsapi.EncryptResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	status, err := client.Status(ctx, &kmsapi.StatusRequest{})
	require.NoError(t, err)
	enc, err := client.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: []byte(seed), Uid: "u1"})
	require.NoError(t, err)
	require.Equal(t, status.KeyId, enc.KeyId)
	return enc
}

func read(t *testing.T, client kmsapi.KeyManagementServiceClient, enc *kmsapi.EncryptResponse) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	dec, err := client.Decrypt(ctx, &kmsapi.DecryptRequest{Ciphertext: enc.Ciphertext, KeyId: enc.KeyId, Annotations: enc.Annotations, Uid: "u2"})
	if err == nil {
		require.Equal(t, seed, string(dec.Plaintext))
	}
	return err
}

func (l *lab) rotate(t *testing.T) keyvault.Ref {
	t.Helper()
	version, err := l.vault.CreateKey("k1", vault.KeyOptions{})
	require.NoError(t, err)
	return l.ref().WithVersion(version)
}

// again starts the program anew in the same directory.
func (l *lab) again(t *testing.T, args ...string) *lab {
	t.Helper()
	require.NoError(t, l.cmd.Process.Kill())
	<-l.done
	return startIn(t, &lab{srv: l.srv, vault: l.vault, version: l.version}, l.dir, nil, args...)
}

// Case R01: a new version is noticed, what was written before stays readable, and a
// restart changes neither.
func TestFollow_ARotation(t *testing.T) {
	l := startLab(t, nil, nil, following()...)
	client := l.client(t)
	first := write(t, client)
	require.Equal(t, l.ref().KeyID(), first.KeyId)

	next := l.rotate(t)
	l.await(t, `"new key version learned.*"version":"`+next.Version)
	l.await(t, `"new key version verified.*"version":"`+next.Version)
	require.Equal(t, first.KeyId, write(t, client).KeyId, "the delay has not passed")
	l.await(t, `"key ID changed","from":"`+first.KeyId+`","to":"`+next.KeyID()+`","version":"`+next.Version+`","cause":"rotation"`)
	second := write(t, client)
	require.Equal(t, next.KeyID(), second.KeyId)
	require.Equal(t, next.Version, string(second.Annotations["key-version.azure.akv.io"]))
	_, series := get(t, l.metrics)
	require.Contains(t, series, `azure_kms_write_key{key_id_hash="`+keyvault.KeyIDHash(first.KeyId)+`"} 0`)
	require.Contains(t, series, `azure_kms_write_key{key_id_hash="`+keyvault.KeyIDHash(second.KeyId)+`"} 1`)
	require.Contains(t, series, "azure_kms_newer_version_available 0")
	code, _ := get(t, l.health+"/readyz")
	require.Equal(t, 200, code)

	// The new version is the first thing that the next process knows.
	l = l.again(t, following()...)
	require.Contains(t, l.stderr.String(), `"to":"`+second.KeyId+`","version":"`+next.Version+`","cause":"memory"`)
	client = l.client(t)
	require.Equal(t, second.KeyId, write(t, client).KeyId)
	require.NoError(t, read(t, client, first))
	require.NoError(t, read(t, client, second))
}

// Case G04: through a rotation, no caller ever sees Status and Encrypt disagree, an
// empty ID, or an ID that comes back.
func TestFollow_StatusAndEncryptAgree(t *testing.T) {
	l := startLab(t, nil, nil, following()...)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	next := l.rotate(t)
	var callers sync.WaitGroup
	ends := make([]string, 200)
	faults := make([]string, 200)
	clients := make([]kmsapi.KeyManagementServiceClient, 8)
	for i := range clients {
		clients[i] = l.client(t)
	}
	for i := range ends {
		callers.Go(func() {
			client := clients[i%len(clients)]
			for ctx.Err() == nil && faults[i] == "" {
				status, err := client.Status(t.Context(), &kmsapi.StatusRequest{})
				if err != nil {
					faults[i] = err.Error()
					return
				}
				if ends[i] == next.KeyID() && status.KeyId != ends[i] {
					faults[i] = "the ID went back"
				}
				enc, err := client.Encrypt(t.Context(), &kmsapi.EncryptRequest{Plaintext: []byte(seed), Uid: "u1"})
				switch {
				case err != nil:
					faults[i] = err.Error()
				// Another caller on the connection may have been told the new one.
				case enc.KeyId != status.KeyId && enc.KeyId != next.KeyID():
					faults[i] = "Encrypt used " + enc.KeyId + " after Status said " + status.KeyId
				}
				ends[i] = status.KeyId
			}
		})
	}
	l.await(t, `"cause":"rotation"`)
	require.Eventually(t, func() bool { return write(t, clients[0]).KeyId == next.KeyID() }, patience, time.Millisecond)
	stop()
	callers.Wait()
	for _, fault := range faults {
		require.Empty(t, fault)
	}
}

// Case R02: three rotations without re-encryption; then the oldest version is
// disabled. Only its data is lost to view, and the log and the metrics name it.
func TestFollow_OldVersionDisabled(t *testing.T) {
	l := startLab(t, nil, nil, following()...)
	client := l.client(t)
	written := []*kmsapi.EncryptResponse{write(t, client)}
	for range 2 {
		next := l.rotate(t)
		l.await(t, `"to":"`+next.KeyID()+`".*"cause":"rotation"`)
		written = append(written, write(t, client))
	}
	require.NoError(t, l.vault.SetEnabled("k1", l.version, false))
	l = l.again(t, following()...)
	client = l.client(t)
	require.ErrorContains(t, read(t, client, written[0]), "KeyDisabled")
	require.NoError(t, read(t, client, written[1]))
	require.NoError(t, read(t, client, written[2]))
	write(t, client)
	l.await(t, `"decrypt".*`+l.version+`.*KeyDisabled|KeyDisabled.*`+l.version)
	_, series := get(t, l.metrics)
	require.Contains(t, series, `azure_kms_requests_total{key_id_hash="`+keyvault.KeyIDHash(written[0].KeyId)+`",operation="decrypt",reason="KeyDisabled"} 1`)
	code, _ := get(t, l.health+"/readyz")
	require.Equal(t, 200, code, "the state of an old version alone never fails the key")

	require.NoError(t, l.vault.SetEnabled("k1", l.version, true))
	require.Eventually(t, func() bool { return read(t, client, written[0]) == nil }, patience, 10*time.Millisecond)
}

// Case R03: going back by the command line is possible, and said. The ID of a
// version is the same whenever it comes up.
func TestPinned_GoesBackWithAWarning(t *testing.T) {
	l := startLab(t, nil, nil, "--log-format-json")
	first := l.version
	a := write(t, l.client(t))
	l.version = l.rotate(t).Version
	second := l.version
	l = l.again(t, "--log-format-json")
	require.NotContains(t, l.stderr.String(), "goes back")
	require.Contains(t, l.stderr.String(), `"key ID changed","from":"`+a.KeyId+`"`)
	b := write(t, l.client(t))
	for range 2 {
		l.version = first
		l = l.again(t, "--log-format-json")
		require.Contains(t, l.stderr.String(), "the key ID goes back to one that was in use earlier")
		require.Contains(t, l.stderr.String(), `"last_version":"`+second+`"`)
	}
	require.Equal(t, a.KeyId, write(t, l.client(t)).KeyId)
	require.NoError(t, read(t, l.client(t), b))
}

func TestPinned_ReportsANewerVersion(t *testing.T) {
	var newer string
	l := startLab(t, func(_ *vault.Server, v *vault.Vault) {
		var err error
		newer, err = v.CreateKey("k1", vault.KeyOptions{})
		require.NoError(t, err)
	}, nil, "--log-format-json")
	l.await(t, `"a newer version of the key is available.*"version":"`+newer)
	_, series := get(t, l.metrics)
	require.Contains(t, series, "azure_kms_newer_version_available 1")
	require.Equal(t, l.ref().KeyID(), write(t, l.client(t)).KeyId)
}

// longAgo is the age of a version that is older than the one that writes.
func longAgo() time.Time { return time.Now().Add(-365 * 24 * time.Hour) }

// What the vault names as the newest may be older: after a restore, or by a server that
// lags. Who waits for the end of a rotation must not wait for that one.
func TestPinned_AnOlderVersionIsNotNewer(t *testing.T) {
	l := startLab(t, func(_ *vault.Server, v *vault.Vault) {
		_, err := v.CreateKey("k1", vault.KeyOptions{Created: longAgo()})
		require.NoError(t, err)
	}, nil, "--log-format-json")
	require.Eventually(t, func() bool { return l.metric(t, "azure_kms_newest_version_poll_timestamp_seconds") > 0 }, patience, 50*time.Millisecond)
	throughout(time.Second, func() { require.Zero(t, l.metric(t, "azure_kms_newer_version_available")) })
	require.NotContains(t, l.stderr.String(), "a newer version of the key is available")
}

// A newest version that cannot write, or is not newer, is reported, and the metric tells
// the two apart.
func TestFollow_TheNewestCannotWrite(t *testing.T) {
	for reason, c := range map[keyvault.Reason]struct {
		newest vault.KeyOptions
		newer  int
		text   string
	}{
		keyvault.KeyDisabled: {vault.KeyOptions{Disabled: true}, 1, "the version is disabled"},
		keyvault.Unknown:     {vault.KeyOptions{Created: longAgo()}, 0, "it is not newer than the one that writes"},
	} {
		t.Run(string(reason), func(t *testing.T) {
			l := startLab(t, nil, nil, following()...)
			first := write(t, l.client(t))
			version, err := l.vault.CreateKey("k1", c.newest)
			require.NoError(t, err)
			l.await(t, `"new key version cannot write yet","version":"`+version+`","reason":"`+string(reason)+`","text":".*`+c.text)
			require.EqualValues(t, c.newer, l.metric(t, "azure_kms_newer_version_available"))
			l = l.again(t, following()...)
			l.await(t, `"new key version cannot write yet"`)
			require.EqualValues(t, c.newer, l.metric(t, "azure_kms_newer_version_available"), "after a restart")
			require.Equal(t, first.KeyId, write(t, l.client(t)).KeyId)
		})
	}
}

// Without permission to look, a plugin that remembers no version cannot serve, and
// says what to mend; one that does goes on.
func TestFollow_GetDenied(t *testing.T) {
	l := startLab(t, nil, nil, following()...)
	enc := write(t, l.client(t))
	require.NoError(t, l.vault.Allow(l.srv.ClientID, vault.PermEncrypt, vault.PermDecrypt))
	l.await(t, `"new key versions cannot be looked for: the one in use stays","reason":"AccessDenied"`)
	l = l.again(t, following()...)
	require.Equal(t, enc.KeyId, write(t, l.client(t)).KeyId)

	dir := shortDir(t)
	_, err := l.srv.AzureJSON(dir)
	require.NoError(t, err)
	p := prepare(t, dir, l.srv.Env(), following()...).start(t)
	require.Eventually(t, func() bool { return strings.Contains(p.stderr.String(), `"msg":"serving"`) }, patience, time.Millisecond)
	_, err = p.status(t)
	require.ErrorContains(t, err, "AccessDenied")
	require.ErrorContains(t, err, "--key-version")
	require.ErrorContains(t, err, "get")

	// Whoever grants it need not restart anything.
	require.NoError(t, l.vault.Allow(l.srv.ClientID, vault.PermEncrypt, vault.PermDecrypt, vault.PermGet))
	require.Eventually(t, func() bool { s, err := p.status(t); return err == nil && s.KeyId == enc.KeyId }, patience, 50*time.Millisecond)
}

// Case R03, and a vault whose clock is not ours: servers of the vault that do not know
// the new version yet answer in turn with those that do. The ID moves once, and when
// the vault's clock says so.
func TestFollow_ServersThatDisagree(t *testing.T) {
	l := startLab(t, func(_ *vault.Server, v *vault.Vault) { v.SetClockSkew(2 * time.Hour) }, nil, following()...)
	client := l.client(t)
	first := write(t, client)
	require.NoError(t, l.vault.SetReplication(vault.Replication{Lag: 2 * time.Second, Alternate: 20 * time.Second}))
	next := l.rotate(t)
	var ids []string
	require.Eventually(t, func() bool {
		enc := write(t, client)
		if len(ids) == 0 || ids[len(ids)-1] != enc.KeyId {
			ids = append(ids, enc.KeyId)
		}
		return strings.Contains(l.stderr.String(), `"cause":"rotation"`) && enc.KeyId == next.KeyID()
	}, patience, 20*time.Millisecond)
	throughout(3*time.Second, func() {
		require.Equal(t, next.KeyID(), write(t, client).KeyId)
		require.Zero(t, l.metric(t, "azure_kms_newer_version_available"))
	})
	require.Equal(t, []string{first.KeyId, next.KeyID()}, ids)
	require.NoError(t, read(t, client, first))
}
