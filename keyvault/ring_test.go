package keyvault

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var ringKey = Ref{Host: "kvlab.vault.azure.net", Name: "k1"}

const ringDelay = 3 * time.Minute

// at is a moment of the vault's clock, in minutes.
func at(minutes float64) time.Time {
	return time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(minutes * float64(time.Minute)))
}

// version makes the attributes of an enabled version. Its ID does not sort as its age.
func version(id string, created float64, change ...func(*Attributes)) Attributes {
	a := Attributes{Key: ringKey.WithVersion(id), Enabled: true, Created: at(created), Updated: at(created)}
	for _, c := range change {
		c(&a)
	}
	return a
}

func disabled(a *Attributes)           { a.Enabled = false }
func expired(a *Attributes)            { a.Expires = a.Created.Add(time.Minute) }
func later(a *Attributes)              { a.NotBefore = a.Created.Add(24 * time.Hour) }
func disabledAfterwards(a *Attributes) { a.Enabled, a.Updated = false, a.Created.Add(time.Hour) }
func newRing() *ring                   { return &ring{delay: ringDelay, fresh: provenFor} }
func names(ms []*member) (found []string) {
	for _, m := range ms {
		found = append(found, m.ref.Version)
	}
	return found
}

// Case R05: by creation and not by text, only what can encrypt, and between two of
// one second the vault's own choice, which is the same for all.
func TestRing_PicksTheNewestUsable(t *testing.T) {
	listed := []Attributes{
		version("9", 100), version("10", 200), version("f1", 300), version("f0", 300),
		version("b", 400, expired), version("c", 500, later), version("a", 600, disabled),
	}
	for _, tie := range []string{"f0", "f1"} {
		r := newRing()
		r.resume(ringKey.WithVersion("9"), at(100))
		order := append([]Attributes{}, listed...)
		if tie == "f0" {
			order[2], order[3] = order[3], order[2]
		}
		// The newest of all is what the vault names as current.
		r.learn(at(700), version("a", 600, disabled), order)
		found := names(r.candidates(at(700)))
		require.ElementsMatch(t, []string{"f0", "f1"}, found[:2])
		require.Equal(t, []string{"10"}, found[2:])
	}
	r := newRing()
	r.resume(ringKey.WithVersion("9"), at(100))
	r.learn(at(301), version("f0", 300), listed[:4])
	require.Equal(t, "f0", r.candidates(at(301))[0].ref.Version)
}

// Which version a process begins with that remembers none.
func TestRing_Begin(t *testing.T) {
	old, newer := version("9", 0), version("10", 100)
	for _, c := range []struct {
		name   string
		now    float64
		newest Attributes
		others []Attributes
		want   string
	}{
		{"the only one, however young", 0.1, old, nil, "9"},
		{"the newest, once its delay has passed", 103, newer, []Attributes{old}, "10"},
		{"not before", 102.9, newer, []Attributes{old}, "9"},
		{"one that was disabled may have been in use", 200, version("10", 100, disabledAfterwards), []Attributes{old}, "10"},
		{"one that has expired too", 200, version("10", 100, expired), []Attributes{old}, "10"},
		{"one that was created disabled was not", 200, version("10", 100, disabled), []Attributes{old}, "9"},
		{"nor one that is not valid yet", 200, version("10", 100, later), []Attributes{old}, "9"},
		{"without a list there is only the newest", 100.1, newer, nil, "10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRing()
			r.learn(at(c.now), c.newest, c.others)
			require.Equal(t, c.want, r.begin(at(c.now)).Version)
		})
	}
}

// A version that becomes usable late has its delay from then on, by a time that
// every replica sees, whenever it looks.
func TestRing_UsableLate(t *testing.T) {
	for _, look := range []float64{150.2, 150.9} {
		r := newRing()
		r.resume(ringKey.WithVersion("9"), at(0))
		r.learn(at(100), version("10", 100, disabled), nil)
		r.learn(at(150), version("10", 100, disabled), nil)
		require.Empty(t, r.candidates(at(150)))
		r.learn(at(look), version("10", 100, func(a *Attributes) { a.Updated = at(150.1) }), nil)
		require.Equal(t, at(153.1), r.candidates(at(look))[0].due(ringDelay))
	}
	// Its time of validity comes without a change.
	r := newRing()
	r.resume(ringKey.WithVersion("9"), at(0))
	r.learn(at(100), version("10", 100, later), nil)
	require.Empty(t, r.candidates(at(100+24*60-0.1)))
	require.Equal(t, at(103+24*60), r.candidates(at(100 + 24*60))[0].due(ringDelay))
}

// The round trip is younger than one probe period at the switch; without it, the
// switch waits, and an older version may have its turn while the newest fails.
func TestRing_Switch(t *testing.T) {
	r := newRing()
	r.resume(ringKey.WithVersion("9"), at(0))
	r.learn(at(100), version("10", 100), nil)
	s := r.next(at(100))
	require.Equal(t, "10", s.verify.ref.Version)
	r.verified(s.verify, at(100), true)
	require.Equal(t, step{again: at(102.5)}, r.next(at(100.1)))
	s = r.next(at(102.5))
	require.NotNil(t, s.verify, "once more before the switch")
	r.verified(s.verify, at(102.5), false)
	require.Equal(t, step{again: at(102.5).Add(verifyAgain)}, r.next(at(102.6)))
	require.Nil(t, r.next(at(103)).adopt, "it has to succeed")
	s = r.next(at(110))
	r.verified(s.verify, at(110), true)
	require.Equal(t, "10", r.next(at(110)).adopt.ref.Version)
	require.NotNil(t, r.next(at(111.1)).verify, "too old by now")

	// A newer one that fails for good, as one that a restore has taken away.
	r.learn(at(112), version("11", 112), nil)
	s = r.next(at(112))
	require.Equal(t, "11", s.verify.ref.Version)
	r.verified(s.verify, at(112), false)
	s = r.next(at(112))
	require.Equal(t, "10", s.verify.ref.Version)
	r.verified(s.verify, at(112), true)
	require.Equal(t, "10", r.next(at(112)).adopt.ref.Version)
}

// It never goes back, whatever the vault calls the newest (case R03).
func TestRing_NeverBack(t *testing.T) {
	r := newRing()
	r.resume(ringKey.WithVersion("10"), at(100))
	for minute := range 100 {
		r.learn(at(float64(200+minute)), version("9", 0), nil)
		require.Equal(t, step{}, r.next(at(float64(200+minute))))
		r.learn(at(float64(200+minute)), version("10", 100), nil)
		require.Equal(t, step{}, r.next(at(float64(200+minute))))
	}
}
