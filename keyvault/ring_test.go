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
func disabledInTime(a *Attributes)     { a.Enabled, a.Updated = false, a.Created.Add(time.Minute) }
func changed(minutes float64) func(*Attributes) {
	return func(a *Attributes) { a.Updated = at(minutes) }
}
func newRing() *ring { return &ring{delay: ringDelay, fresh: provenFor} }
func names(ms []*member) (found []string) {
	for _, m := range ms {
		found = append(found, m.ref.Version)
	}
	return found
}

// now is a moment by the vault's clock and by one that is a day behind.
func now(minutes float64) moment { return moment{vault: at(minutes), here: here(minutes)} }

func here(minutes float64) time.Time { return at(minutes).Add(-24 * time.Hour) }

// Case R05: by creation and not by text, only what can encrypt, and between two of
// one second always the same one, whatever the vault names and in whatever order.
func TestRing_PicksTheNewestUsable(t *testing.T) {
	listed := []Attributes{
		version("9", 100), version("10", 200), version("f1", 300), version("f0", 300),
		version("b", 400, expired), version("c", 500, later), version("a", 600, disabled),
	}
	for round := range 4 {
		r := newRing() // one that knows them already keeps their order
		r.resume(ringKey.WithVersion("9"), at(100))
		listed[2], listed[3] = listed[3], listed[2]
		r.learn(listed[2+round/2], listed)
		require.Equal(t, []string{"f1", "f0", "10"}, names(r.candidates(at(700))))
		r.writes = r.find("f1")
		r.learn(listed[2], nil)
		r.learn(listed[3], nil)
		require.Empty(t, r.candidates(at(700)))
	}
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
		{"nor one that was disabled before its time", 200, version("10", 100, disabledInTime), []Attributes{old}, "9"},
		{"one that was changed before its time has its delay from then on", 104.9, version("10", 100, changed(102)), []Attributes{old}, "9"},
		{"and writes after that", 105, version("10", 100, changed(102)), []Attributes{old}, "10"},
		{"one that was changed since was", 200, version("10", 100, changed(199.9)), []Attributes{old}, "10"},
		{"one that has just become valid was not", 102.9, version("10", 0, func(a *Attributes) { a.NotBefore = at(100) }), []Attributes{old}, "9"},
		{"nor one that is not valid yet", 200, version("10", 100, later), []Attributes{old}, "9"},
		{"without a list there is only the newest", 100.1, newer, nil, "10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRing()
			r.learn(c.newest, c.others)
			require.Equal(t, c.want, r.begin(at(c.now)).Version)
		})
	}
}

// A version that becomes usable late has its delay from then on, by a time that
// every replica sees, whenever it looks, and whatever it saw before.
func TestRing_UsableLate(t *testing.T) {
	usable := version("10", 100, changed(150.1))
	for _, before := range [][]Attributes{nil, {version("10", 100, disabled)}, {version("10", 100, later)}, {version("10", 100, expired)}} {
		r := newRing()
		r.resume(ringKey.WithVersion("9"), at(0))
		for _, a := range before {
			r.learn(a, nil)
			require.Empty(t, r.candidates(at(150)))
		}
		r.learn(usable, nil)
		require.Equal(t, at(153.1), r.due(r.candidates(at(150.9))[0], at(150.9)))
	}
	// Its time of validity comes without a change.
	r := newRing()
	r.resume(ringKey.WithVersion("9"), at(0))
	r.learn(version("10", 100, later), nil)
	require.Empty(t, r.candidates(at(100+24*60-0.1)))
	require.Equal(t, at(103+24*60), r.due(r.candidates(at(100 + 24*60))[0], at(100+24*60)))
}

// What wrote when the process before this one was pinned has no known creation: until
// it is seen, nothing that was there at the first look counts as newer.
func TestRing_ResumesOneOfUnknownCreation(t *testing.T) {
	r := newRing()
	r.resume(ringKey.WithVersion("10"), time.Time{})
	r.guess(at(200))
	r.learn(version("9", 0), nil)
	require.Empty(t, r.candidates(at(300)))
	r.guess(at(250))
	require.True(t, r.undated())
	r.learn(version("11", 150), []Attributes{version("10", 100)})
	require.False(t, r.undated())
	require.Equal(t, []string{"11"}, names(r.candidates(at(300))))

	r = newRing()
	r.resume(ringKey.WithVersion("10"), time.Time{})
	r.guess(at(200))
	r.learn(version("11", 201), nil)
	require.Equal(t, []string{"11"}, names(r.candidates(at(300))), "created after the start")
}

// A version is proven at once, and looked at and proven once more just before the
// switch, which waits for that.
func TestRing_Switch(t *testing.T) {
	last := 103 - lastLook.Minutes()
	r := newRing()
	r.resume(ringKey.WithVersion("9"), at(0))
	r.learn(version("10", 100), nil)
	m := r.find("10")
	require.Equal(t, step{verify: m}, r.next(now(100)))
	m.verified(here(100))
	require.Equal(t, lastLook, at(103).Sub(at(100.1))-r.next(now(100.1)).wait)
	require.Equal(t, step{look: m}, r.next(now(last)))
	m.looked = here(last)
	require.Equal(t, step{verify: m}, r.next(now(last)))
	m.verified(here(last))
	require.Equal(t, lastLook, r.next(now(last)).wait.Round(time.Microsecond))
	require.Equal(t, step{adopt: m}, r.next(now(103)))
	require.Equal(t, step{adopt: m}, r.next(now(103.5)), "a slow vault takes its time")
	require.Equal(t, step{look: m}, r.next(now(104)), "too long ago by now")

	m.looked = here(104)
	require.Equal(t, step{verify: m}, r.next(now(104)))
	m.failed(here(104), false)
	require.Equal(t, verifyAgain, r.next(now(104)).wait)
	require.Equal(t, step{verify: m}, r.next(now(104.2)), "it has to succeed")
	m.verified(here(104.2))
	require.Equal(t, step{adopt: m}, r.next(now(104.2)))
}

// What the last look shows is obeyed.
func TestRing_LastLook(t *testing.T) {
	for name, c := range map[string]struct {
		shown Attributes
		want  func(r *ring) step
	}{
		"disabled":  {version("10", 100, disabledInTime), func(*ring) step { return step{} }},
		"changed":   {version("10", 100, changed(102)), func(*ring) step { return step{wait: 2 * time.Minute} }},
		"overtaken": {version("11", 102.5), func(r *ring) step { return step{verify: r.find("11")} }},
	} {
		r := newRing()
		r.resume(ringKey.WithVersion("9"), at(0))
		r.learn(version("10", 100), nil)
		m := r.find("10")
		m.verified(here(100))
		last := 103 - lastLook.Minutes()
		require.Equal(t, step{look: m}, r.next(now(last)), name)
		r.learn(c.shown, nil)
		m.looked = here(last)
		got := r.next(now(last))
		got.wait = got.wait.Round(time.Millisecond)
		require.Equal(t, c.want(r), got, name)
	}
}

// A newer one that fails for good, as one that a restore has taken away, leaves the
// turn to the one before it.
func TestRing_TheNewestFails(t *testing.T) {
	r := newRing()
	r.resume(ringKey.WithVersion("9"), at(0))
	r.learn(version("11", 112), []Attributes{version("10", 100)})
	m := r.find("11")
	require.Equal(t, step{verify: m}, r.next(now(112)))
	m.failed(here(112), false)
	m = r.find("10")
	require.Equal(t, step{verify: m}, r.next(now(112)))
	m.verified(here(112))
	r.find("11").failed(here(114.9), false)
	require.Equal(t, step{look: m}, r.next(now(115)), "its time is counted anew from the newer one's creation")
	m.looked = here(115)
	m.verified(here(115))
	require.Equal(t, step{adopt: m}, r.next(now(115)))
}

// What makes room for an older version is a change that all replicas see too.
func TestRing_RoomForAnOlder(t *testing.T) {
	for name, newer := range map[string]Attributes{
		"disabled": version("11", 101, disabled, changed(102)),
		"expired":  version("11", 101, func(a *Attributes) { a.Expires = at(102) }),
	} {
		r := newRing()
		r.resume(ringKey.WithVersion("9"), at(0))
		r.learn(newer, []Attributes{version("10", 100)})
		require.Equal(t, at(105), r.due(r.find("10"), at(102)), name)
		require.Equal(t, []string{"10"}, names(r.candidates(at(102))), name)
	}
}

// It never goes back, whatever the vault calls the newest (case R03).
func TestRing_NeverBack(t *testing.T) {
	r := newRing()
	r.resume(ringKey.WithVersion("10"), at(100))
	for minute := range 100 {
		r.learn(version("9", 0), nil)
		require.Equal(t, step{}, r.next(now(float64(200+minute))))
		r.learn(version("10", 100), nil)
		require.Equal(t, step{}, r.next(now(float64(200+minute))))
	}
}
