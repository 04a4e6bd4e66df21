package main

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A process without a descriptor left says so, and serves again when it has one.
func TestDescriptorsUsedUp(t *testing.T) {
	l := startLab(t, nil, nil)
	var before unix.Rlimit
	none := unix.Rlimit{Cur: 3}
	require.NoError(t, unix.Prlimit(l.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &before))
	none.Max = before.Max
	require.NoError(t, unix.Prlimit(l.cmd.Process.Pid, unix.RLIMIT_NOFILE, &none, nil))
	conn, err := net.Dial("unix", l.socket)
	require.NoError(t, err)
	defer conn.Close()
	require.Eventually(t, func() bool {
		return strings.Contains(l.stderr.String(), "cannot accept a connection")
	}, patience, time.Millisecond)
	require.NoError(t, unix.Prlimit(l.cmd.Process.Pid, unix.RLIMIT_NOFILE, &before, nil))
	l.roundTrip(t)
}
