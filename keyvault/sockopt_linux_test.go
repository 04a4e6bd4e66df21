package keyvault_test

import (
	"net"
	"syscall"
	"testing"

	"azure-kms-plugin/keyvault"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A connection that a firewall has silently dropped must fail in time for a retry.
func TestTransport_DeadConnectionsFailFast(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	conn, err := keyvault.TransportTo(ln.Addr().String(), nil).DialContext(t.Context(), "tcp", "kvlab.vault.azure.net:443")
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	raw, err := conn.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	var ms int
	require.NoError(t, raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }))
	require.NoError(t, err)
	require.Equal(t, 1500, ms)
}
