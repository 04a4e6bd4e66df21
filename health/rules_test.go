package health

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"azure-kms-plugin/keyvault"
)

// A happening is one piece of evidence.
type happening struct {
	at     time.Duration // since the beginning
	op     keyvault.Op
	reason keyvault.Reason // Success for none
	what   string          // outcome, canary, missed or unprobed
}

func (h happening) failed() bool { return h.reason != keyvault.Success }

// history is all that happened, in order. What the rules say of it is put here as
// questions to the whole of it, which the state machine must answer without keeping it.
type history struct {
	all     []happening
	settled time.Duration
	graces  Graces
}

// lastSuccess is the place of the last good decrypt, or -1.
func (h history) lastSuccess() int {
	for i := len(h.all) - 1; i >= 0; i-- {
		e := h.all[i]
		if !e.failed() && (e.what == "canary" || e.what == "outcome" && (e.op == keyvault.OpDecrypt || e.op == keyvault.OpUnwrap)) {
			return i
		}
	}
	return -1
}

// since returns when the first happening that counts came after the last success.
func (h history) since(counts func(happening) bool) (time.Duration, bool) {
	for _, e := range h.all[h.lastSuccess()+1:] {
		if e.failed() && counts(e) {
			return e.at, true
		}
	}
	return 0, false
}

func (h history) young(e happening) bool {
	return e.reason == keyvault.KeyNotFound && e.at < h.settled
}

func (h history) isKeyState(e happening) bool {
	return e.what == "outcome" && e.reason.Kind() == keyvault.KindKeyState && !h.young(e)
}

// isRefusal: of a denied look at the attributes nothing follows, nor of a denied encrypt once decrypts
// speak for themselves.
func (h history) isRefusal(e happening) bool {
	if e.what != "outcome" || e.reason.Kind() != keyvault.KindRefusal {
		return false
	}
	permission := e.reason == keyvault.AccessDenied || e.reason == keyvault.OperationNotPermitted
	looks := e.op == keyvault.OpGet || e.op == keyvault.OpList
	writes := e.op == keyvault.OpEncrypt || e.op == keyvault.OpWrap
	return !permission || !looks && (!writes || h.lastSuccess() < 0)
}

func (h history) isFault(e happening) bool {
	return e.what == "outcome" && (e.reason.Kind() == keyvault.KindFault || h.young(e))
}

// wrongCanary is when the canary first came back wrong and has not come back right since.
func (h history) wrongCanary() (at time.Duration, wrong bool) {
	for _, e := range h.all {
		switch {
		case e.what != "canary":
		case !e.failed():
			wrong = false
		case !wrong:
			at, wrong = e.at, true
		}
	}
	return at, wrong
}

// lost says whether something must be obeyed as a loss at a moment.
func (h history) lost(now time.Duration) bool {
	for _, rule := range []struct {
		counts func(happening) bool
		grace  time.Duration
	}{
		{h.isKeyState, h.graces.of(classKeyState)},
		{h.isRefusal, h.graces.of(classRefusal)},
		{h.isFault, h.graces.of(classFault)},
	} {
		if first, ok := h.since(rule.counts); ok && now-first >= rule.grace {
			return true
		}
	}
	at, wrong := h.wrongCanary()
	return wrong && now-at >= h.graces.of(classFault)
}

// cutOff says whether a seed was missed and the canary too.
func (h history) cutOff() bool {
	away := func(what string) func(happening) bool {
		return func(e happening) bool {
			k := e.reason.Kind()
			return e.what == what && (k == keyvault.KindFault || k == keyvault.KindRefusal) || what == "unprobed" && e.what == "canary"
		}
	}
	_, missed := h.since(away("missed"))
	_, probed := h.since(away("unprobed"))
	return missed && probed
}

// proven says whether anything has shown that the key is there and lets us in.
func (h history) proven() bool {
	for _, e := range h.all {
		if e.what == "outcome" && e.reason.Kind() == keyvault.KindUnwritable && e.op != keyvault.OpGet && e.op != keyvault.OpList {
			return true
		}
	}
	return h.lastSuccess() >= 0
}

// TestRules holds the state machine against the rules of the failure table, over
// every order in which evidence may come, with steps as long as the graces.
func TestRules(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		h := history{graces: Graces{
			Outage:   rapid.SampledFrom([]time.Duration{0, -1, time.Hour}).Draw(t, "outage grace"),
			Denial:   rapid.SampledFrom([]time.Duration{0, -1, time.Minute}).Draw(t, "denial grace"),
			KeyState: rapid.SampledFrom([]time.Duration{0, -1}).Draw(t, "key state grace"),
		}}
		var s state
		if rapid.Bool().Draw(t, "young") {
			h.settled = 3 * time.Minute
			s.settled = begin.Add(h.settled)
		}
		now := time.Duration(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += rapid.SampledFrom([]time.Duration{
				0, time.Millisecond, 5 * time.Second, 15 * time.Second, time.Minute, 10 * time.Minute, 24 * time.Hour,
			}).Draw(t, "wait")
			before, _ := s.judge(begin.Add(now), h.graces)
			e := happening{
				at:     now,
				op:     rapid.SampledFrom(keyvault.Ops()).Draw(t, "op"),
				reason: rapid.SampledFrom(keyvault.Reasons()).Draw(t, "reason"),
				what:   rapid.SampledFrom([]string{"outcome", "outcome", "outcome", "canary", "missed", "unprobed"}).Draw(t, "what"),
			}
			o := keyvault.Outcome{Op: e.op, Time: begin.Add(now)}
			if e.failed() {
				o.Err = &keyvault.Error{Op: e.op, Reason: e.reason, Text: "drawn"}
			}
			switch {
			case e.what == "outcome":
				s.observe(o)
			case e.what == "canary":
				s.canary(o.Time, o.Err)
			case !e.failed():
				continue
			case e.what == "missed":
				s.miss(o)
			default:
				s.unprobed(o)
			}
			h.all = append(h.all, e)
			phase, f := s.judge(begin.Add(now), h.graces)

			require.Equal(t, h.lost(now), phase == Lost, "a loss is obeyed when, and only when, its grace is over")
			if before == Lost && phase != Lost {
				require.Equal(t, len(h.all)-1, h.lastSuccess(), "only a decrypt ends a loss")
			}
			if phase != Lost {
				require.Equal(t, !h.proven(), phase == Starting, "no ok without a proof, and no doubt after one")
			}
			if phase != Lost && phase != Starting {
				require.Equal(t, h.cutOff(), phase == CutOff)
			}
			if phase == Usable {
				require.Nil(t, f)
			}
			if phase != Usable && phase != Starting {
				require.NotNil(t, f, "whatever is not well has a reason")
				kind, loss := s.borne(f, h.graces)
				require.NotEmpty(t, kind)
				require.Equal(t, phase == Lost, phase != CutOff && !loss.IsZero() && !loss.After(begin.Add(now)), "the announced moment of the loss is that of the loss")
			}
			if !e.failed() && h.lastSuccess() == len(h.all)-1 {
				require.NotEqual(t, CutOff, phase)
			}
		}
	})
}

// TestRules_timePassing holds that nothing but a grace's end changes by itself.
func TestRules_timePassing(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		var s state
		for range rapid.IntRange(0, 10).Draw(t, "happenings") {
			o := keyvault.Outcome{Op: rapid.SampledFrom(keyvault.Ops()).Draw(t, "op"), Time: begin}
			if r := rapid.SampledFrom(keyvault.Reasons()).Draw(t, "reason"); r != keyvault.Success {
				o.Err = &keyvault.Error{Op: o.Op, Reason: r, Text: "drawn"}
			}
			s.observe(o)
		}
		at := func(d time.Duration) Phase { phase, _ := s.judge(begin.Add(d), Graces{}); return phase }
		first, lost := at(0), false
		for _, d := range []time.Duration{14 * time.Second, 15 * time.Second, 10 * time.Minute, 24 * time.Hour, 240 * time.Hour} {
			phase := at(d)
			if lost {
				require.Equal(t, Lost, phase, "a loss is sticky")
			}
			lost = phase == Lost
			require.True(t, lost || phase == first, "%s became %s", first, phase)
		}
	})
}
