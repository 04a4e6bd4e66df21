package health

import (
	"slices"

	"azure-kms-plugin/health/status"
)

// shownClients are the clients that a document has room for: API servers first, then the
// latest.
func shownClients(all []status.Client) []status.Client {
	shown := append([]status.Client{}, all...)
	slices.SortStableFunc(shown, func(a, b status.Client) int {
		switch {
		case a.APIServer != b.APIServer && a.APIServer:
			return -1
		case a.APIServer != b.APIServer:
			return 1
		}
		return b.Since.Compare(a.Since)
	})
	return slices.Clip(shown[:min(len(shown), status.MaxClients)])
}
