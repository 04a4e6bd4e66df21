package keyvault

import "time"

// A vaultClock tells the vault's time between its answers. It runs on this
// machine's monotonic clock, so that nobody who sets the other one moves a switch.
// The zero value tells this machine's time.
type vaultClock struct {
	here  time.Time
	there time.Time // what the vault's clock showed at that moment
	// doubt is how far the last Date was away from what this clock told; zero if it
	// was believed.
	doubt time.Duration
}

// clockTolerance is how far two answers' Dates may disagree: they have no fractions,
// and a vault is many servers.
const clockTolerance = 2 * time.Second

// set takes the Date of an answer that has just come. A Date has no fractions: on
// average half a second of the one it names is over. After the first, a Date that is
// far off is believed once another says the same: it may be one server's, or a proxy's.
func (c *vaultClock) set(date, now time.Time) {
	if date.IsZero() {
		return
	}
	date = date.Add(time.Second / 2)
	if off := date.Sub(c.at(now)); !c.here.IsZero() && off.Abs() > clockTolerance && (off-c.doubt).Abs() > clockTolerance {
		c.doubt = off
		return
	}
	c.here, c.there, c.doubt = now, date, 0
}

// at converts a moment of this machine.
func (c *vaultClock) at(now time.Time) time.Time {
	if c.here.IsZero() {
		return now
	}
	return c.there.Add(now.Sub(c.here))
}
