package keyvault_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/stretchr/testify/require"
)

// Case K01: each kind of 403 has its reason, with the inner code and the request's
// ID in the text and no name of a caller; it is asked once, and ends by itself.
func TestVault_KindsOf403(t *testing.T) {
	l := newLab(t, vault.Config{})
	block, err := l.c.Encrypt(within(t, 3*time.Second), l.ref, []byte("seed"))
	require.NoError(t, err)
	bg := keyvault.Background(t.Context())
	for inner, reason := range map[string]keyvault.Reason{
		"AccessDenied": keyvault.AccessDenied, "ForbiddenByPolicy": keyvault.AccessDenied, "ForbiddenByRbac": keyvault.AccessDenied,
		"ForbiddenByFirewall": keyvault.NetworkDenied, "ForbiddenByConnection": keyvault.NetworkDenied,
		"KeyOperationForbidden": keyvault.OperationNotPermitted,
		"KeyDisabled":           keyvault.KeyDisabled, "KeyExpired": keyvault.KeyExpired, "KeyNotYetValid": keyvault.KeyNotYetValid,
		"": keyvault.Unreachable, // no JSON, and no header of a vault: a proxy
	} {
		t.Run(inner, func(t *testing.T) {
			f := vault.Fault{Status: 403, InnerCode: inner}
			if inner == "" {
				f.Body, f.ContentType = "<html>CANARY</html>", "text/html"
				f.Header = map[string]string{"X-Ms-Request-Id": "", "X-Ms-Keyvault-Service-Version": ""}
			}
			for _, op := range []vault.Op{vault.OpEncrypt, vault.OpDecrypt} {
				f.Op = op
				l.srv.ResetCalls()
				id := l.srv.AddFault(f)
				do := func() error { _, err := l.c.Decrypt(bg, l.ref, block); return err }
				if op == vault.OpEncrypt {
					do = func() error { _, err := l.c.Encrypt(bg, l.ref, []byte("seed")); return err }
				}
				e := failure(t, do())
				require.Equal(t, reason, e.Reason, e.Text)
				require.Equal(t, inner, e.InnerCode)
				if inner != "" {
					require.Contains(t, e.Text, "Forbidden/"+inner)
					require.Contains(t, e.Text, "request "+e.RequestID)
					require.Len(t, e.RequestID, 36)
				}
				for _, secret := range []string{l.srv.ClientID, l.srv.TenantID, "eyJ", "CANARY", "subscriptions", "203.0.113.7"} {
					require.NotContains(t, e.Error(), secret)
				}
				require.Equal(t, 1, l.srv.Calls()[string(op)], "not tried again")
				l.srv.RemoveFault(id)
				require.NoError(t, do())
			}
		})
	}
}

// A denied permission is said in words, for each operation.
func TestVault_SaysWhatIsDenied(t *testing.T) {
	l := newLab(t, vault.Config{})
	l.srv.AddFault(vault.Fault{Status: 403, InnerCode: "ForbiddenByRbac"})
	bg := keyvault.Background(t.Context())
	for want, do := range map[string]func() error{
		"may not encrypt with the key (":          func() error { _, err := l.c.Encrypt(bg, l.ref, []byte("seed")); return err },
		"may not decrypt with the key (":          func() error { _, err := l.c.Decrypt(bg, l.ref, []byte("block")); return err },
		"may not get the attributes of the key (": func() error { _, err := l.c.Get(bg, l.ref); return err },
		"may not list the versions of the key (":  func() error { _, err := l.c.Versions(bg, l.ref.WithVersion("")); return err },
	} {
		e := failure(t, do())
		require.Equal(t, keyvault.AccessDenied, e.Reason)
		require.Contains(t, e.Text, "the identity "+want)
		// The identity may have the other pair of permissions.
		crypts := e.Op == keyvault.OpEncrypt || e.Op == keyvault.OpDecrypt
		require.Equal(t, crypts, strings.Contains(e.Text, "--key-operations=wrap"), e.Text)
	}
}

// Case K04: what is no answer of a vault is one short line without markup or
// control characters, and a redirect takes no token anywhere.
func TestVault_AnswersThatAreNotJSON(t *testing.T) {
	l := newLab(t, vault.Config{})
	other := l.srv.Vault("kvother")
	bg := keyvault.Background(t.Context())
	_, err := l.c.Get(bg, l.ref)
	require.NoError(t, err)
	page := "<html>\x1b[31mCANARY\r\n" + strings.Repeat("<p>CANARY</p>", 4000) + "</html>"
	for name, tt := range map[string]struct {
		fault vault.Fault
		text  string
	}{
		"404 page":          {vault.Fault{Status: 404, Body: page, ContentType: "text/html; charset=utf-8"}, "unexpected response (http 404, text/html, request "},
		"502 empty":         {vault.Fault{Status: 502, NoBody: true}, "http 502"},
		"200 page":          {vault.Fault{Status: 200, Body: page, ContentType: "text/html"}, "unexpected response (http 200, text/html, request "},
		"200 nothing":       {vault.Fault{Status: 200, Body: "{}"}, "unexpected response (http 200, application/json, request "},
		"307":               {vault.Fault{Redirect: other.KeyURL("k1", v2)}, "unexpected response (http 307, request "},
		"308":               {vault.Fault{Status: 308, Redirect: other.KeyURL("k1", v2)}, "unexpected response (http 308, request "},
		"odd content type":  {vault.Fault{Status: 404, Body: "x", ContentType: "text/" + strings.Repeat("x", 500)}, "unexpected response (http 404, text/"},
		"half a JSON error": {vault.Fault{Status: 404, Body: `{"error":{"code":"KeyNotFound"`}, "unexpected response (http 404"},
	} {
		t.Run(name, func(t *testing.T) {
			id := l.srv.AddFault(tt.fault)
			defer l.srv.RemoveFault(id)
			for _, do := range []func() error{
				func() error { _, err := l.c.Encrypt(bg, l.ref, []byte("seed")); return err },
				func() error { _, err := l.c.Decrypt(bg, l.ref, []byte("block")); return err },
				func() error { _, err := l.c.Get(bg, l.ref); return err },
				func() error { _, err := l.c.Versions(bg, l.ref); return err },
			} {
				e := failure(t, do())
				require.Contains(t, e.Text, tt.text)
				require.Less(t, len(e.Text), 300)
				require.NotContains(t, e.Text, "CANARY")
				for _, r := range e.Text {
					require.True(t, r >= ' ' && r <= '~', "%q", e.Text)
				}
				require.Contains(t, []keyvault.Reason{keyvault.Unknown, keyvault.Unreachable}, e.Reason)
			}
			require.Zero(t, l.srv.Count(vault.Match{Host: other.Host()}), "a redirect was followed")
			require.Zero(t, l.srv.ConnectionsTo(other.Host()))
		})
	}
}

// Case K11: a success that lacks something is an error and no panic, in each of
// the operations.
func TestClient_SuccessWithMissingFields(t *testing.T) {
	kid := "https://kvlab.vault.azure.net/keys/k1/" + v1
	for _, body := range []string{
		``, `{`, `{}`, `null`, `[]`, `"x"`, `{"kid":null}`, `{"value":"AAAA"}`, `{"kid":"` + kid + `"}`,
		`{"kid":"` + kid + `","value":null}`, `{"kid":"` + kid + `","value":"*"}`, `{"kid":"` + kid + `","value":7}`,
		`{"kid":"` + kid + `","value":"AA`, `{"kid":"https://kvlab.vault.azure.net/keys","value":"AAAA"}`,
		`{"key":null,"attributes":null}`, `{"key":{},"attributes":{}}`, `{"key":{"kid":"` + kid + `"}}`, `{"key":{"kid":"x","key_ops":[null]},"attributes":{}}`,
		`{"value":[{"kid":"` + kid + `"`,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWeb()
			w.answer = func(r request) (*http.Response, error) { return reply(r.http, 200, body), nil }
			c, seen := newClient(t, w, &bank{})
			ctx := keyvault.Background(within(t, 3*time.Second))
			for op, do := range map[keyvault.Op]func() error{
				keyvault.OpEncrypt: func() error { _, err := c.Encrypt(ctx, key1, []byte("seed")); return err },
				keyvault.OpDecrypt: func() error { _, err := c.Decrypt(ctx, key1, []byte("block")); return err },
				keyvault.OpGet:     func() error { _, err := c.Get(ctx, key1); return err },
			} {
				e := failure(t, do())
				require.Equal(t, []any{keyvault.Unknown, op}, []any{e.Reason, e.Op}, body)
				require.Contains(t, e.Text, "unexpected response (http 200, application/json, request req-1)", body)
			}
			require.Len(t, seen.outcomes, 3)
			_, err := c.Deleted(ctx, key1)
			require.Equal(t, keyvault.Unknown, failure(t, err).Reason, body)
			_, err = c.Versions(ctx, key1)
			require.Equal(t, keyvault.Unknown, failure(t, err).Reason, body)
		})
	}
	// Entries of a list that are no versions of the key are left out.
	w := newWeb()
	w.answer = func(r request) (*http.Response, error) {
		return reply(r.http, 200, `{"value":[null,{},{"kid":null,"attributes":{}},{"kid":"x","attributes":{}},{"kid":"`+kid+`"},
			{"kid":"https://kvlab.vault.azure.net/keys/k2/`+v2+`","attributes":{}},{"kid":"`+kid+`","attributes":{"enabled":false}}]}`), nil
	}
	c, _ := newClient(t, w, &bank{})
	list, err := c.Versions(t.Context(), key1)
	require.NoError(t, err)
	require.Equal(t, []keyvault.Attributes{{Key: key1}}, list)
}

// The newest version is not named by the caller: what the vault calls so goes into the
// log and into key IDs.
func TestClient_TheNewestHasAVersionsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		c, _ := newClient(t, w, &bank{})
		ctx := keyvault.Background(t.Context())
		for _, version := range []string{"", "abc", "abc%0a%1b[31m", v1 + "0", "0123456789abcdef0123456789abcdeg"} {
			body := `{"key":{"kid":"https://kvlab.vault.azure.net/keys/k1/` + version + `"},"attributes":{"created":1700000000}}`
			w.answer = func(r request) (*http.Response, error) { return reply(r.http, 200, body), nil }
			_, err := c.Get(ctx, key1.WithVersion(""))
			require.Equal(t, keyvault.Unknown, failure(t, err).Reason, version)
			time.Sleep(time.Minute) // the breaker
		}
	})
}

// A time that no calendar writes is cut, so that nothing behind it has to expect one: a
// state file that could not be written, for example. A bound goes on to mean the same.
func TestClient_TimesOutOfRange(t *testing.T) {
	w := newWeb()
	c, _ := newClient(t, w, &bank{})
	get := func(at string) keyvault.Attributes {
		body := `{"key":{"kid":"` + key1.URL() + `"},"attributes":{"created":` + at + `,"updated":` + at + `,"nbf":` + at + `,"exp":` + at + `}}`
		w.answer = func(r request) (*http.Response, error) { return reply(r.http, 200, body), nil }
		a, err := c.Get(t.Context(), key1)
		require.NoError(t, err)
		return a
	}
	for _, late := range []string{"253402300800", "9223372036854775807"} {
		a := get(late)
		require.True(t, a.Created.IsZero(), late)
		require.True(t, a.Updated.IsZero(), late)
		require.Equal(t, 9999, a.Expires.UTC().Year(), late)
		reason, _ := a.Barred(time.Now())
		require.Equal(t, keyvault.KeyNotYetValid, reason)
	}
	for _, early := range []string{"-62135596800", "-62167219201", "-9223372036854775808"} {
		a := get(early)
		require.True(t, a.Created.IsZero(), early)
		require.Equal(t, int64(0), a.NotBefore.Unix(), early)
		reason, _ := a.Barred(time.Now())
		require.Equal(t, keyvault.KeyExpired, reason)
	}
	a := get("253402300799")
	require.Equal(t, 9999, a.Created.UTC().Year())
}

// Case R05, the listing: every page is followed, and each version comes with what
// decides whether it may write.
func TestVault_ManyVersionsArePaged(t *testing.T) {
	l := newLab(t, vault.Config{})
	priv, made := testKey(t), time.Now().Add(-24*time.Hour).Truncate(time.Second)
	want := map[string]vault.KeyOptions{}
	for i := range 60 {
		o := vault.KeyOptions{Key: priv, Version: versionID(i * 7919), Created: made.Add(time.Duration(i) * time.Minute)}
		switch i {
		case 56: // shares its second with the one before
			o.Created = made.Add(55 * time.Minute)
		case 57:
			o.Expires = made.Add(time.Hour)
		case 58:
			o.NotBefore = made.Add(48 * time.Hour)
		case 59:
			o.Disabled = true
		}
		_, err := l.kv.CreateKey("many", o)
		require.NoError(t, err)
		want[o.Version] = o
	}
	list, err := l.c.Versions(within(t, 3*time.Second), keyvault.Ref{Host: l.ref.Host, Name: "many", Version: v1})
	require.NoError(t, err)
	require.Len(t, list, 60)
	require.Equal(t, 3, l.srv.Calls()["list"])
	for _, a := range list {
		o, ok := want[a.Key.Version]
		require.True(t, ok, "twice, or never made: %s", a.Key)
		delete(want, a.Key.Version)
		require.True(t, a.Key.SameKey(keyvault.Ref{Host: l.ref.Host, Name: "many"}))
		require.Equal(t, !o.Disabled, a.Enabled)
		require.True(t, o.Created.Equal(a.Created), a.Key)
		require.True(t, o.Expires.Equal(a.Expires), a.Key)
		require.True(t, o.NotBefore.Equal(a.NotBefore), a.Key)
	}
	require.Empty(t, want)

	// A page that fails is no shorter list, and a link to elsewhere is not followed.
	l.srv.AddFault(vault.Fault{Op: vault.OpList, Skip: 2, Times: 2, Status: 403, InnerCode: "ForbiddenByRbac"})
	list, err = l.c.Versions(within(t, 3*time.Second), keyvault.Ref{Host: l.ref.Host, Name: "many"})
	require.Equal(t, keyvault.AccessDenied, failure(t, err).Reason)
	require.Nil(t, list)
	l.srv.ClearFaults()
	other := l.srv.Vault("kvother")
	l.srv.AddFault(vault.Fault{Op: vault.OpList, Status: 200, Body: `{"value":[],"nextLink":"` + other.KeyURL("many", "") + `/versions?api-version=7.4"}`})
	_, err = l.c.Versions(keyvault.Background(t.Context()), keyvault.Ref{Host: l.ref.Host, Name: "many"})
	require.Contains(t, failure(t, err).Text, "refers to another host")
	require.Zero(t, l.srv.ConnectionsTo(other.Host()))
}
