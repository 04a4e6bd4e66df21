package plugin

import "sync"

// calls counts the calls under way.
type calls struct {
	mu    sync.Mutex
	n     int
	quiet []chan struct{}
}

func (c *calls) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 {
		for _, q := range c.quiet {
			close(q)
		}
		c.quiet = nil
	}
}

// whenNone returns a channel that is closed once no call is under way.
func (c *calls) whenNone() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := make(chan struct{})
	if c.n == 0 {
		close(q)
	} else {
		c.quiet = append(c.quiet, q)
	}
	return q
}

func (c *calls) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}
