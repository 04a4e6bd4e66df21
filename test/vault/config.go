package vault

import (
	"errors"
	"fmt"
	"time"
)

// Config says how the emulator behaves. The zero value is a service with one
// principal, which may do everything in every vault.
type Config struct {
	// TenantID, ClientID and ClientSecret are the default principal's. A
	// fixed tenant and client ID and a random secret stand in for empty ones.
	TenantID, ClientID, ClientSecret string

	// HTTP2 offers HTTP/2 beside HTTP/1.1. The service does; the existing
	// plugins were measured without it.
	HTTP2 bool

	// TokenLifetime is how long a token lasts. Default: 1 h.
	TokenLifetime time.Duration

	// DeleteDelay is how long a deleted key is neither here nor in
	// /deletedkeys of a vault; a Managed HSM shows it at once. Default: 7 s;
	// negative: none.
	DeleteDelay time.Duration

	// RecoverDelay is how long a recovered key stays out of reach. Default: none.
	RecoverDelay time.Duration

	// RecoverableDays is how long a deleted key can be recovered, 7 to 90. Default: 90.
	RecoverableDays int

	// EncryptWhenDisabled makes a disabled key encrypt and wrap. Reports of
	// what the service does contradict each other; by default it refuses.
	EncryptWhenDisabled bool

	// HSMVersions404 makes a Managed HSM answer 404 to a list of the versions
	// of a missing key, as it did in the past, and not an empty list.
	HSMVersions404 bool

	// KeepRequests is how many requests Requests remembers. Default: 1000.
	KeepRequests int

	// Now is the clock of the Date header, key attributes, tokens and
	// deletion. Default: time.Now. Certificates always follow the real clock.
	Now func() time.Time

	// Listen, ProxyListen and AdminListen are addresses to listen on.
	// Default: a free port of 127.0.0.1 for each.
	Listen, ProxyListen, AdminListen string
}

const (
	defaultTenantID = "11111111-2222-3333-4444-555555555555"
	defaultClientID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
)

// withDefaults returns c with every empty field filled in, and every fault of c.
func (c Config) withDefaults() (Config, error) {
	var faults []error
	bad := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	if c.TokenLifetime < 0 {
		bad("TokenLifetime", "%v is negative", c.TokenLifetime)
	}
	if c.RecoverDelay < 0 {
		bad("RecoverDelay", "%v is negative", c.RecoverDelay)
	}
	if c.RecoverableDays != 0 && (c.RecoverableDays < 7 || c.RecoverableDays > 90) {
		bad("RecoverableDays", "%d is not between 7 and 90", c.RecoverableDays)
	}
	if c.KeepRequests < 0 {
		bad("KeepRequests", "%d is negative", c.KeepRequests)
	}
	if c.TenantID == "" {
		c.TenantID = defaultTenantID
	}
	if c.ClientID == "" {
		c.ClientID = defaultClientID
	}
	if c.ClientSecret == "" {
		c.ClientSecret = randomText(24)
	}
	if c.TokenLifetime == 0 {
		c.TokenLifetime = time.Hour
	}
	switch {
	case c.DeleteDelay == 0:
		c.DeleteDelay = 7 * time.Second
	case c.DeleteDelay < 0:
		c.DeleteDelay = 0
	}
	if c.RecoverableDays == 0 {
		c.RecoverableDays = 90
	}
	if c.KeepRequests == 0 {
		c.KeepRequests = 1000
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	for _, addr := range []*string{&c.Listen, &c.ProxyListen, &c.AdminListen} {
		if *addr == "" {
			*addr = "127.0.0.1:0"
		}
	}
	return c, errors.Join(faults...)
}
