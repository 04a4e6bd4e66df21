package keyvault

import (
	"errors"
	"net/http"
)

// A ProxyMode sends requests to a forwarding service that is named instead of
// the vault, as the --proxy-* flags of the existing plugins do.
type ProxyMode struct {
	Address string
	Port    int
}

func (*ProxyMode) wrap(http.RoundTripper) (http.RoundTripper, error) {
	return nil, errors.New("proxy mode is not supported yet: use HTTPS_PROXY")
}
