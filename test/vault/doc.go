// Package vault emulates Azure Key Vault, Managed HSM, the token endpoint and
// the instance metadata service on the loopback, with real RSA keys.
package vault
