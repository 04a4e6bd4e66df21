package plugin_test

import (
	"net"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/plugin"
)

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal("this test counts descriptors in /proc: ", err)
	}
	return len(entries)
}

// X01: connections that are dropped half-way leave nothing behind.
func TestGate_DroppedHalfWay(t *testing.T) {
	r := serve(t)
	c := r.dial(t)
	c.status(t)
	fds, base := descriptors(t), runtime.NumGoroutine()
	for i := range 2000 {
		conn, err := net.Dial("unix", r.path)
		require.NoError(t, err)
		switch i % 3 {
		case 0:
			conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		case 1:
			conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")[:i%24])
		}
		conn.Close()
	}
	require.Eventually(t, func() bool { return descriptors(t) <= fds }, 10*time.Second, 10*time.Millisecond)
	backTo(t, base)
	require.Len(t, r.Connections(), 1)
	c.status(t)
}

// Nobody is served behind the handshake time-out of those that say nothing.
func TestGate_SilentHoldNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		c, stop := r.serveInMemory(t)
		for range 4 * plugin.MaxPending {
			conn, err := r.memory.Dial()
			require.NoError(t, err)
			defer conn.Close()
		}
		start := time.Now()
		c.status(t)
		require.Zero(t, time.Since(start))
		stop()
	})
}

// Connections that say nothing are bounded, the oldest give way, and callers
// get in at once all the while.
func TestGate_Silent(t *testing.T) {
	r := serve(t)
	fds := descriptors(t)
	var silent []net.Conn
	for range 4 * plugin.MaxPending {
		conn, err := net.Dial("unix", r.path)
		require.NoError(t, err)
		defer conn.Close()
		silent = append(silent, conn)
	}
	r.dial(t).status(t)
	// One more, once they have been silent for long, makes the oldest give way.
	require.Eventually(t, func() bool {
		conn, err := net.Dial("unix", r.path)
		require.NoError(t, err)
		conn.Close()
		// Both ends are in this process: the clients' descriptors stay.
		return descriptors(t) <= fds+len(silent)+plugin.MaxPending+4
	}, 10*time.Second, 50*time.Millisecond)
	silent[0].SetReadDeadline(time.Now().Add(5 * time.Second))
	for {
		if _, err := silent[0].Read(make([]byte, 64)); err != nil {
			require.False(t, os.IsTimeout(err), "the oldest was not closed")
			break
		}
	}
}

// Clients that come all at once are no silent ones: none of them is cut off.
func TestGate_Crowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		_, stop := r.serveInMemory(t)
		conns := make([]net.Conn, 4*plugin.MaxPending)
		for i := range conns {
			conn, err := r.memory.Dial()
			require.NoError(t, err)
			defer conn.Close()
			conns[i] = conn
		}
		for _, conn := range conns {
			_, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Len(t, r.Connections(), len(conns))
		stop()
	})
}
