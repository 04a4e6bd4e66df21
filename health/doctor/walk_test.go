package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health/console"
	"azure-kms-plugin/health/doctor"
	"azure-kms-plugin/keyvault"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func refusal(reason keyvault.Reason) error {
	return &keyvault.Error{Op: keyvault.OpEncrypt, Key: key, Reason: reason, Text: "kvlab.vault.azure.net: no"}
}

// Each kind of failure has its exit status.
func TestWalk_ExitStatus(t *testing.T) {
	for _, reason := range keyvault.Reasons() {
		if reason == keyvault.Success {
			continue
		}
		want := map[keyvault.Kind]int{
			keyvault.KindKeyState: 2, keyvault.KindRefusal: 2, keyvault.KindFault: 3, keyvault.KindUnwritable: 1, keyvault.KindCaller: 3,
		}[reason.Kind()]
		cfg, v, _ := well(t)
		v.encrypt = refusal(reason)
		r := doctor.Walk(t.Context(), cfg)
		require.Equal(t, want, r.ExitStatus, reason)
		require.Equal(t, doctor.Fail, find(t, r, doctor.Encrypt).State)
		require.Equal(t, doctor.Skipped, find(t, r, doctor.Decrypt).State)
		require.Contains(t, r.Text, string(reason))
	}
	cfg, v, _ := well(t)
	v.encrypt = errors.New("not of package keyvault")
	require.Equal(t, 3, doctor.Walk(t.Context(), cfg).ExitStatus)
}

// A walk whose time is up, or which is interrupted, says at which step.
func TestWalk_Ends(t *testing.T) {
	expired, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	for reason, ctx := range map[keyvault.Reason]context.Context{keyvault.Unreachable: expired, keyvault.Canceled: interrupted} {
		cfg, _, _ := well(t)
		r := doctor.Walk(ctx, cfg)
		require.Equal(t, 3, r.ExitStatus)
		require.Equal(t, reason, find(t, r, doctor.DNS).Reason)
		for _, s := range r.Steps[1:] {
			require.Equal(t, doctor.Skipped, s.State, s.Name)
		}
	}
}

// Whoever gives back other bytes is not the vault.
func TestWalk_OtherBytes(t *testing.T) {
	cfg, v, _ := well(t)
	v.block = []byte("PLAINCANARY")
	r := doctor.Walk(t.Context(), cfg)
	require.Equal(t, 3, r.ExitStatus)
	s := find(t, r, doctor.Decrypt)
	require.Equal(t, doctor.Fail, s.State)
	require.Contains(t, s.Text, "other bytes")
	require.NotContains(t, s.Text, "CANARY")
}

func TestWalk_Clock(t *testing.T) {
	for skew, want := range map[time.Duration]struct {
		state doctor.State
		says  string
	}{
		0:                 {doctor.OK, "agree"},
		2 * time.Second:   {doctor.OK, "agree"},
		-2 * time.Second:  {doctor.OK, "agree"},
		3 * time.Second:   {doctor.OK, "this machine's clock is 3s behind the vault's"},
		5 * time.Minute:   {doctor.OK, "5m0s behind"},
		301 * time.Second: {doctor.Warn, "5m1s behind"},
		-6 * time.Minute:  {doctor.Warn, "6m0s ahead of"},
	} {
		cfg, _, w := well(t)
		w.exchange.Date = date.Add(skew)
		r := doctor.Walk(t.Context(), cfg)
		s := find(t, r, doctor.Clock)
		require.Equal(t, want.state, s.State, skew)
		require.Contains(t, s.Text, want.says)
		require.Equal(t, want.state == doctor.Warn, r.ExitStatus == 1)
	}
	cfg, _, w := well(t)
	w.exchange.Date = time.Time{}
	require.Equal(t, doctor.Note, find(t, doctor.Walk(t.Context(), cfg), doctor.Clock).State)
}

func TestWalk_CertificateEndsSoon(t *testing.T) {
	cfg, _, w := well(t)
	w.exchange.TLS.NotAfter = w.exchange.Answered.Add(50 * time.Hour)
	r := doctor.Walk(t.Context(), cfg)
	require.Equal(t, doctor.Warn, find(t, r, doctor.TLS).State)
	require.Equal(t, 1, r.ExitStatus)
}

// The expiry is announced 30 days ahead, by the vault's clock.
func TestWalk_Expiry(t *testing.T) {
	const month = 30 * 24 * time.Hour
	for left, want := range map[time.Duration]doctor.State{
		month: doctor.OK, month - time.Second: doctor.Warn, time.Second: doctor.Warn, 0: doctor.Fail, -month: doctor.Fail,
	} {
		cfg, v, _ := well(t)
		v.attributes.Expires = date.Add(left)
		s := find(t, doctor.Walk(t.Context(), cfg), doctor.Validity)
		require.Equal(t, want, s.State, left)
		require.Equal(t, want == doctor.Fail, s.Reason == keyvault.KeyExpired)
	}
}

// Purge protection is worth a word.
func TestWalk_Purgeable(t *testing.T) {
	cfg, v, _ := well(t)
	for level, want := range map[string]doctor.State{"Recoverable+Purgeable": doctor.Note, "Recoverable": doctor.OK} {
		v.attributes.RecoveryLevel = level
		r := doctor.Walk(t.Context(), cfg)
		require.Equal(t, want, find(t, r, doctor.Attributes).State)
		require.Equal(t, 0, r.ExitStatus)
	}
}

// A token that is refused is told from one that cannot be fetched.
func TestWalk_NoToken(t *testing.T) {
	cfg, _, _ := well(t)
	cfg.Tokens.Source = source{&keyvault.Error{Reason: keyvault.CredentialsRefused, Text: "login.microsoftonline.com refuses"}}
	r := doctor.Walk(t.Context(), cfg)
	require.Equal(t, 2, r.ExitStatus)
	require.Empty(t, find(t, r, doctor.Token).Remedy)
	require.Equal(t, doctor.OK, find(t, r, doctor.SignInTLS).State)

	cfg.SignIn = nil // a service of this machine
	cfg.Tokens.Source = source{&keyvault.Error{Reason: keyvault.CredentialsUnavailable, Text: "no answer"}}
	r = doctor.Walk(t.Context(), cfg)
	require.Equal(t, 3, r.ExitStatus)
	for _, s := range r.Steps {
		require.False(t, strings.HasPrefix(string(s.Name), "sign-in"), s.Name)
	}
}

// The sign-in host's own trouble is followed as far as it goes.
func TestWalk_SignInHost(t *testing.T) {
	cfg, _, _ := well(t)
	cfg.Tokens.Source = source{&keyvault.Error{Reason: keyvault.CredentialsUnavailable, Text: "no answer"}}
	cfg.SignIn = &way{resolve: &keyvault.Error{Reason: keyvault.Unreachable, Cause: keyvault.CauseDNS, Text: "the resolver does not answer"}}
	r := doctor.Walk(t.Context(), cfg)
	require.Equal(t, doctor.Fail, find(t, r, doctor.SignInDNS).State)
	require.Contains(t, find(t, r, doctor.SignInDNS).Remedy, "resolv.conf")
	require.Equal(t, doctor.Skipped, find(t, r, doctor.SignInTCP).State)
	require.Equal(t, doctor.Skipped, find(t, r, doctor.SignInTLS).State)
}

// What the page looks like, well and not.
func TestReport_Table(t *testing.T) {
	for name, change := range map[string]func(*doctor.Config, *vault, *way){
		"well": func(*doctor.Config, *vault, *way) {},
		"warnings": func(cfg *doctor.Config, v *vault, w *way) {
			cfg.Files = append(cfg.Files, doctor.Step{Name: doctor.Files, State: doctor.Warn, Text: "azure.json is open to every user of this machine"})
			v.attributes.Expires = date.Add(50 * time.Hour)
		},
		"unreachable": func(_ *doctor.Config, _ *vault, w *way) {
			w.connect = &keyvault.Error{Reason: keyvault.Unreachable, Cause: keyvault.CauseTimeout, Text: "kvlab.vault.azure.net: no answer to the connection: connecting: timed out"}
		},
		"refused": func(cfg *doctor.Config, _ *vault, _ *way) {
			cfg.Tokens.Source = source{&keyvault.Error{Reason: keyvault.CredentialsRefused, Text: "login.microsoftonline.com refuses the client secret (http 401, AADSTS7000222): aadClientSecret has expired: make a new one"}}
		},
		"disabled": func(_ *doctor.Config, v *vault, _ *way) { v.attributes.Enabled = false },
	} {
		cfg, v, w := well(t)
		cfg.Files = []doctor.Step{{Name: doctor.Files, State: doctor.OK, Text: key.URL() + "; sign-in with a client secret, by /etc/kubernetes/azure.json"}}
		cfg.Socket = "@akp-test-that-nobody-serves"
		change(&cfg, v, w)
		var out bytes.Buffer
		// Nothing takes any time in a bubble.
		synctest.Test(t, func(t *testing.T) { doctor.Walk(t.Context(), cfg).WriteTable(&out) })
		path, got := filepath.Join("testdata", name+".txt"), out.String()
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), got)
		require.NotContains(t, got, "CANARY")
	}
}

// What a certificate, a foreign plugin or a vault says cannot reach a terminal as it is.
func TestReport_NothingForATerminal(t *testing.T) {
	cfg, v, w := well(t)
	const evil = "a\x1b[2J\u009b1mb\u202e\r\nc"
	w.exchange.TLS.Certificate, v.attributes.RecoveryLevel = evil, evil
	v.encrypt = &keyvault.Error{Reason: keyvault.Unknown, Text: evil}
	r := doctor.Walk(t.Context(), cfg)
	var table, js bytes.Buffer
	r.WriteTable(&table)
	require.NoError(t, console.WriteJSON(&js, r))
	for _, c := range table.String() + js.String() {
		require.True(t, c == '\n' || unicode.IsPrint(c), "%U", c)
	}
	var back doctor.Report
	require.NoError(t, json.Unmarshal(js.Bytes(), &back))
	require.Equal(t, r.Steps, back.Steps)
	require.Equal(t, "KMSPluginDoctorReport", back.Kind)
}
