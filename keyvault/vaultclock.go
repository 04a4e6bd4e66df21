package keyvault

import "time"

// A vaultClock tells the vault's time between its answers. It runs on this
// machine's monotonic clock, so that nobody who sets the other one moves a switch.
// The zero value tells this machine's time.
type vaultClock struct {
	here  time.Time
	there time.Time // what the vault's clock showed at that moment
}

// set takes the Date of an answer that has just come. A Date has no fractions: on
// average half a second of the one it names is over.
func (c *vaultClock) set(date, now time.Time) {
	if date.IsZero() {
		return
	}
	c.here, c.there = now, date.Add(time.Second/2)
}

// at converts a moment of this machine.
func (c *vaultClock) at(now time.Time) time.Time {
	if c.here.IsZero() {
		return now
	}
	return c.there.Add(now.Sub(c.here))
}
