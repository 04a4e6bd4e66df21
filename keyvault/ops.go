package keyvault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
)

// maxPages bounds a listing: 25 versions a page, and no key has a thousand.
const maxPages = 80

// opDeleted is a GET of a deleted key. It has a breaker of its own, and its 404
// is no evidence: for a live key that is the good answer.
const opDeleted Op = "getdeleted"

// errIncomplete is a success without its content.
var errIncomplete = errors.New("incomplete result")

// Attributes are what a vault tells about one version of a key.
type Attributes struct {
	// Key names the version.
	Key Ref
	// Enabled, NotBefore and Expires say when it may be used; a zero time is no
	// bound.
	Enabled   bool
	NotBefore time.Time
	Expires   time.Time
	Created   time.Time
	Updated   time.Time
	// KeyType and KeyOps are as the vault writes them, "RSA-HSM" for example.
	// A listing does not hold them.
	KeyType string
	KeyOps  []string
	// RecoveryLevel and RecoverableDays say what a deletion would mean.
	RecoveryLevel   string
	RecoverableDays int
	// Deleted and ScheduledPurge are set by Deleted alone.
	Deleted        time.Time
	ScheduledPurge time.Time
	// Date is the vault's clock at the answer; zero if it did not tell.
	Date time.Time
}

// Encrypt has a version encrypt a small plaintext with RSA-OAEP-256 and returns
// the RSA block. ref must name a version.
func (c *Client) Encrypt(ctx context.Context, ref Ref, plaintext []byte) ([]byte, error) {
	op := OpEncrypt
	if c.wrap {
		op = OpWrap
	}
	return c.crypt(ctx, op, ref, plaintext)
}

// Decrypt has a version decrypt an RSA block.
func (c *Client) Decrypt(ctx context.Context, ref Ref, block []byte) ([]byte, error) {
	op := OpDecrypt
	if c.wrap {
		op = OpUnwrap
	}
	return c.crypt(ctx, op, ref, block)
}

func (c *Client) crypt(ctx context.Context, op Op, ref Ref, value []byte) ([]byte, error) {
	if err := checkRef(op, ref, true); err != nil {
		return nil, err
	}
	if len(value) == 0 || len(value) > 1024 {
		return nil, &Error{Op: op, Key: ref, Reason: BadRequest, Text: fmt.Sprintf("%d bytes cannot be one RSA block or its content", len(value))}
	}
	var out []byte
	failure := c.do(ctx, op, ref, func(ctx context.Context, keys *azkeys.Client, cl *call) error {
		params := azkeys.KeyOperationParameters{Algorithm: to.Ptr(azkeys.EncryptionAlgorithmRSAOAEP256), Value: value}
		var result azkeys.KeyOperationResult
		var err error
		switch op {
		case OpEncrypt:
			var r azkeys.EncryptResponse
			r, err = keys.Encrypt(ctx, ref.Name, ref.Version, params, nil)
			result = r.KeyOperationResult
		case OpDecrypt:
			var r azkeys.DecryptResponse
			r, err = keys.Decrypt(ctx, ref.Name, ref.Version, params, nil)
			result = r.KeyOperationResult
		case OpWrap:
			var r azkeys.WrapKeyResponse
			r, err = keys.WrapKey(ctx, ref.Name, ref.Version, params, nil)
			result = r.KeyOperationResult
		default:
			var r azkeys.UnwrapKeyResponse
			r, err = keys.UnwrapKey(ctx, ref.Name, ref.Version, params, nil)
			result = r.KeyOperationResult
		}
		defer cl.wipe()
		if err != nil {
			return cl.tooLong(err, len(value))
		}
		// Another version's block under our key ID would be unreadable later.
		if got, ok := parseKID(result.KID); !ok || !strings.EqualFold(got.Version, ref.Version) || !strings.EqualFold(got.Name, ref.Name) {
			return cl.odd(fmt.Errorf("kid: %w", errIncomplete))
		}
		if len(result.Result) == 0 {
			return cl.odd(fmt.Errorf("value: %w", errIncomplete))
		}
		if cl.alone {
			clear(result.Result)
			return nil
		}
		out = result.Result
		return nil
	})
	if failure != nil {
		return nil, failure
	}
	return out, nil
}

// maxFitting is the longest plaintext that every key takes: RSA-OAEP-256 with
// 2048 bits.
const maxFitting = 256 - 2*32 - 2

// tooLong makes the caller's fault of an answer that can have no other reason.
// The size of the key is not known here: to ask for it needs the permission "get".
func (c *call) tooLong(err error, size int) error {
	re, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok || c.op != OpEncrypt && c.op != OpWrap || size <= maxFitting || re.StatusCode != http.StatusBadRequest || re.ErrorCode != "BadParameter" {
		return err
	}
	if e := answerError(c.op, c.ref, re.RawResponse); e == nil || e.Reason != Unknown {
		return err
	}
	return &Error{Reason: BadRequest, Status: re.StatusCode, Text: fmt.Sprintf("%s: a plaintext of %d bytes is too long for this key", where(c.ref), size)}
}

// wipe clears the text of a response that held a plaintext.
func (c *call) wipe() {
	if c.response == nil || c.response.StatusCode != http.StatusOK {
		return
	}
	if body, err := runtime.Payload(c.response); err == nil {
		clear(body)
	}
}

// Get tells about a version, or the newest one if ref names none.
func (c *Client) Get(ctx context.Context, ref Ref) (Attributes, error) {
	if err := checkRef(OpGet, ref, false); err != nil {
		return Attributes{}, err
	}
	var out Attributes
	failure := c.do(ctx, OpGet, ref, func(ctx context.Context, keys *azkeys.Client, cl *call) error {
		r, err := keys.GetKey(ctx, ref.Name, ref.Version, nil)
		if err != nil {
			return err
		}
		if r.Key == nil || r.Attributes == nil {
			return cl.odd(errIncomplete)
		}
		got, ok := parseKID(r.Key.KID)
		if !ok || !IsVersion(got.Version) || ref.Version != "" && !strings.EqualFold(got.Version, ref.Version) || !strings.EqualFold(got.Name, ref.Name) {
			return cl.odd(errIncomplete)
		}
		out = attributes(ref.WithVersion(got.Version), r.Attributes)
		if r.Key.Kty != nil {
			out.KeyType = clean(string(*r.Key.Kty), 20)
		}
		for _, o := range r.Key.KeyOps {
			if o != nil {
				out.KeyOps = append(out.KeyOps, clean(string(*o), 20))
			}
		}
		out.Date = cl.date()
		return nil
	})
	if failure != nil {
		return Attributes{}, failure
	}
	return out, nil
}

// Versions lists a key's versions, in no order. An empty list does not mean
// that the key is gone: a vault answers so for a missing key too, and a Managed
// HSM's 404, which some give instead, is read as one.
func (c *Client) Versions(ctx context.Context, ref Ref) ([]Attributes, error) {
	ref.Version = ""
	if err := checkRef(OpList, ref, false); err != nil {
		return nil, err
	}
	var out []Attributes
	failure := c.do(ctx, OpList, ref, func(ctx context.Context, keys *azkeys.Client, cl *call) error {
		pager := keys.NewListKeyPropertiesVersionsPager(ref.Name, nil)
		for range maxPages {
			page, err := pager.NextPage(ctx)
			if re, ok := errors.AsType[*azcore.ResponseError](err); ok && re.StatusCode == http.StatusNotFound && re.ErrorCode == "KeyNotFound" && len(out) == 0 {
				return nil
			}
			if err != nil {
				return err
			}
			if page.Value == nil {
				return cl.odd(fmt.Errorf("value: %w", errIncomplete))
			}
			for _, k := range page.Value {
				if k == nil || k.Attributes == nil {
					continue
				}
				if got, ok := parseKID(k.KID); ok && strings.EqualFold(got.Name, ref.Name) && IsVersion(got.Version) {
					out = append(out, attributes(ref.WithVersion(got.Version), k.Attributes))
				}
			}
			if !pager.More() {
				return nil
			}
		}
		return cl.odd(errors.New("too many pages"))
	})
	if failure != nil {
		return nil, failure
	}
	return out, nil
}

// Deleted tells about a soft-deleted key. KeyNotFound means that it is not
// deleted, purged, or deleted so lately that the vault does not show it yet. On a
// Managed HSM it takes a role that a plugin should not have: AccessDenied then
// says nothing about the key.
func (c *Client) Deleted(ctx context.Context, ref Ref) (Attributes, error) {
	ref.Version = ""
	if err := checkRef(OpGet, ref, false); err != nil {
		return Attributes{}, err
	}
	var out Attributes
	failure := c.do(ctx, opDeleted, ref, func(ctx context.Context, keys *azkeys.Client, cl *call) (err error) {
		out, err = getDeleted(ctx, keys, cl)
		return err
	})
	if failure != nil {
		if failure.Reason == AccessDenied && ref.IsHSM() {
			failure = failure.at(OpGet, ref)
			failure.Text = fmt.Sprintf("%s: %s (%s)", where(ref), officerOnly, httpText(failure, ""))
		}
		return Attributes{}, failure
	}
	return out, nil
}

// checkRef keeps what cannot be a key from becoming part of a URL.
func checkRef(op Op, ref Ref, version bool) error {
	err := ref.Validate()
	if err == nil && version && ref.Version == "" {
		err = errors.New("the key's version is missing")
	}
	if err != nil {
		return &Error{Op: op, Key: ref, Reason: BadRequest, Text: err.Error(), Err: err}
	}
	return nil
}

func attributes(ref Ref, a *azkeys.KeyAttributes) Attributes {
	out := Attributes{
		Key: ref, Enabled: a.Enabled == nil || *a.Enabled,
		NotBefore: timeOf(a.NotBefore), Expires: timeOf(a.Expires), Created: eventOf(a.Created), Updated: eventOf(a.Updated),
	}
	if a.RecoveryLevel != nil {
		out.RecoveryLevel = clean(*a.RecoveryLevel, 60)
	}
	if a.RecoverableDays != nil {
		out.RecoverableDays = int(*a.RecoverableDays)
	}
	return out
}

// lastSecond is the last one that JSON and RFC 3339 can write.
const lastSecond = 253402300799

// timeOf is a bound. One that cannot be written down is cut to one that means the same.
func timeOf(t *time.Time) time.Time {
	switch {
	case t == nil:
		return time.Time{}
	case t.Unix() < 0:
		return time.Unix(0, 0)
	case t.Unix() > lastSecond:
		return time.Unix(lastSecond, 0)
	}
	return *t
}

// eventOf is when something has happened; zero for when it cannot have.
func eventOf(t *time.Time) time.Time {
	if t == nil || t.Unix() < 0 || t.Unix() > lastSecond {
		return time.Time{}
	}
	return *t
}

func (c *call) date() time.Time {
	if c.response == nil {
		return time.Time{}
	}
	t, _ := http.ParseTime(c.response.Header.Get("Date"))
	return t
}

// parseKID reads a key identifier without the SDK's own parser, which panics on
// short ones.
func parseKID(id *azkeys.ID) (Ref, bool) {
	if id == nil {
		return Ref{}, false
	}
	u, err := url.Parse(string(*id))
	if err != nil {
		return Ref{}, false
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	if len(parts) < 2 || !strings.EqualFold(parts[0], "keys") {
		return Ref{}, false
	}
	r := Ref{Host: strings.ToLower(u.Hostname()), Name: parts[1]}
	if len(parts) > 2 {
		r.Version = parts[2]
	}
	return r, true
}

// Barred says why a version cannot encrypt at a moment of the vault's clock, with
// what to mend; Success if its attributes do not keep it from that.
func (a Attributes) Barred(now time.Time) (Reason, string) {
	reason, text := Success, ""
	switch {
	case !a.Enabled:
		reason, text = KeyDisabled, "the version is disabled"
	case !a.Expires.IsZero() && !now.Before(a.Expires):
		reason, text = KeyExpired, "the version expired at "+a.Expires.UTC().Format(time.RFC3339)+", so it only decrypts"
	case now.Before(a.NotBefore):
		reason, text = KeyNotYetValid, "the version is valid only from "+a.NotBefore.UTC().Format(time.RFC3339)+" on, until when it only decrypts"
	default:
		return Success, ""
	}
	return reason, where(a.Key) + ": " + text + mend(&Error{Reason: reason, Key: a.Key})
}
