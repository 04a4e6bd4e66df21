package freeport_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/vault/freeport"
)

func TestFind(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port, err := freeport.Find()
		require.NoError(t, err)
		require.Less(t, port, 32768, "outgoing connections take those")
		require.False(t, seen[port], "a port that is taken was given")
		seen[port] = true
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		require.NoError(t, err)
		defer l.Close()
	}
}
