package keyvault_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/keyvault"
)

// Who reads that a version cannot write must not have to find out which.
func TestAttributes_BarredNamesTheVersion(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	ref := keyvault.Ref{Host: "kvlab.vault.azure.net", Name: "k1", Version: "0123456789abcdef0123456789abcdef"}
	const where = "kvlab.vault.azure.net, key k1, version 0123456789abcdef0123456789abcdef: "
	for _, tc := range []struct {
		attrs  keyvault.Attributes
		reason keyvault.Reason
		text   string
	}{
		{keyvault.Attributes{Key: ref}, keyvault.KeyDisabled, where + "the version is disabled; enable this version again (az keyvault key set-attributes --vault-name kvlab --name k1 --version 0123456789abcdef0123456789abcdef --enabled true)"},
		{keyvault.Attributes{Key: ref, Enabled: true, Expires: now}, keyvault.KeyExpired, where + "the version expired at 2026-05-01T00:00:00Z, so it only decrypts; change to a new version (az keyvault key rotate --vault-name kvlab --name k1) or move its expiry date (az keyvault key set-attributes --vault-name kvlab --name k1 --version 0123456789abcdef0123456789abcdef --expires)"},
		{keyvault.Attributes{Key: ref, Enabled: true, NotBefore: now.Add(time.Hour)}, keyvault.KeyNotYetValid, where + "the version is valid only from 2026-05-01T01:00:00Z on, until when it only decrypts; move its activation date or wait for it"},
		{keyvault.Attributes{Key: ref, Enabled: true}, keyvault.Success, ""},
	} {
		reason, text := tc.attrs.Barred(now)
		require.Equal(t, tc.reason, reason)
		require.Equal(t, tc.text, text)
	}
}
