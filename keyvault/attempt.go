package keyvault

import (
	"bytes"
	"net/http"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
)

// An attemptPolicy sees every exchange with a vault but the one that only asks
// which token it wants.
type attemptPolicy struct {
	userAgent string
	onCall    func(Call)
}

// Do implements policy.Policy, once per exchange.
func (p *attemptPolicy) Do(req *policy.Request) (*http.Response, error) {
	if p.userAgent != "" {
		req.Raw().Header.Set("User-Agent", p.userAgent+" "+req.Raw().Header.Get("User-Agent"))
	}
	ctx := req.Raw().Context()
	c, _ := ctx.Value(callKey{}).(*call)
	start := time.Now()
	resp, err := req.Next()
	if c == nil {
		return resp, err
	}
	var failure *Error
	switch {
	case err == nil:
		failure = answerError(c.op, c.ref, resp)
		if failure != nil {
			traceOf(ctx).fail(failure)
		}
	case ctx.Err() != nil:
		failure = c.ended(ctx)
	default:
		failure = netError(c.op, c.ref, err)
	}
	asking := ctx.Value(elicitKey{}) != nil && err == nil && resp.StatusCode == http.StatusUnauthorized
	if p.onCall != nil && !asking {
		reason := Success
		if failure != nil {
			reason = failure.Reason
		}
		p.onCall(Call{Op: c.op, Reason: reason, Took: time.Since(start)})
	}
	if failure == nil {
		trimPadding(resp)
	}
	return resp, err
}

// paddedValue is a base64 value with the padding that the protocol leaves out
// and the SDK refuses.
var paddedValue = pattern(`"value"\s*:\s*"[0-9A-Za-z_-]*(={1,2})"`)

// trimPadding works in place, so that there is no second copy of a plaintext:
// the closing quote moves to the left, spaces fill up.
func trimPadding(resp *http.Response) {
	body, err := runtime.Payload(resp)
	if err != nil {
		return
	}
	if !bytes.Contains(body, []byte(`="`)) {
		return // nearly always
	}
	if m := paddedValue().FindSubmatchIndex(body); m != nil {
		body[m[2]] = '"'
		for i := m[2] + 1; i <= m[3]; i++ {
			body[i] = ' '
		}
	}
}
