package keyvault_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"azure-kms-plugin/keyvault"
	"azure-kms-plugin/test/vault"

	"github.com/stretchr/testify/require"
)

// resolverAddr is where names are asked for; nil for the machine's own resolver.
// A dial may outlive its test, so the resolver itself is never exchanged.
var resolverAddr atomic.Pointer[string]

func init() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if to := resolverAddr.Load(); to != nil {
			network, addr = "udp", *to
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
}

// A resolver is a DNS server on the loopback, which everything in this process
// asks while the test runs. rcode is what it answers; 0 is the address 127.0.0.1,
// negative is silence.
type resolver struct {
	rcode   atomic.Int32
	queries atomic.Int32
}

const (
	silence  = -1
	found    = 0
	servfail = 2
	nxdomain = 3
)

func newResolver(t *testing.T) *resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &resolver{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1024)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			r.queries.Add(1)
			if reply := r.answer(buf[:n]); reply != nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	}()
	addr := conn.LocalAddr().String()
	resolverAddr.Store(&addr)
	t.Cleanup(func() {
		resolverAddr.Store(nil)
		conn.Close()
		<-done
	})
	return r
}

// answer makes a reply of a query: its question again, and one A record if there
// is to be one.
func (r *resolver) answer(query []byte) []byte {
	rcode := r.rcode.Load()
	if rcode == silence {
		return nil
	}
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the root, type and class
	out := append([]byte(nil), query[:end]...)
	binary.BigEndian.PutUint16(out[2:], 0x8180|uint16(rcode))
	for _, count := range []int{6, 8, 10} {
		binary.BigEndian.PutUint16(out[count:], 0)
	}
	if isA := binary.BigEndian.Uint16(query[end-4:]) == 1; rcode == found && isA {
		binary.BigEndian.PutUint16(out[6:], 1)
		out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1)
	}
	return out
}

// toPort is the transport of production, but for the port, which is that of addr.
func toPort(t *testing.T, addr string) *http.Transport {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	rt := keyvault.ResolvingTransport()
	dial := rt.DialContext
	rt.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(addr)
		return dial(ctx, network, net.JoinHostPort(host, port))
	}
	return rt
}

// resolverBudget leaves a busy machine time to come to the cause.
const resolverBudget = 2 * time.Second

// Case K09: a name that does not exist, a resolver that fails or is silent, and a
// port that refuses are told apart within the caller's time, with the host's name.
func TestVault_ResolverFaultsKeepTheirCause(t *testing.T) {
	l := newLab(t, vault.Config{})
	dns := newResolver(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for name, tt := range map[string]struct {
		rcode  int32
		reason keyvault.Reason
		cause  keyvault.Cause
		text   string
	}{
		"nxdomain": {nxdomain, keyvault.VaultNotFound, keyvault.CauseDNS, "the name kvlab.vault.azure.net does not exist in DNS"},
		"servfail": {servfail, keyvault.Unreachable, keyvault.CauseDNS, "the resolver fails for kvlab.vault.azure.net"},
		"silence":  {silence, keyvault.Unreachable, keyvault.CauseDNS, "the resolver does not answer for kvlab.vault.azure.net within "},
		"refused":  {found, keyvault.Unreachable, keyvault.CauseTCP, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			dns.rcode.Store(tt.rcode)
			c, seen := newClient(t, toPort(t, closed.Addr().String()), &bank{})
			start := time.Now()
			_, err := c.Decrypt(within(t, resolverBudget), l.ref, []byte("block"))
			require.Less(t, time.Since(start), resolverBudget+500*time.Millisecond)
			e := failure(t, err)
			require.Equal(t, tt.reason, e.Reason, e.Text)
			require.Equal(t, tt.cause, e.Cause, e.Text)
			require.Contains(t, e.Text, tt.text)
			require.Contains(t, e.Text, "kvlab.vault.azure.net")
			require.NotContains(t, e.Text, "deadline exceeded")
			if tt.rcode == nxdomain {
				require.Len(t, seen.calls, 1, "not tried again")
			}
		})
	}
}

// Case K09: the resolver that recovers is noticed at the next call.
func TestVault_ResolverRecovers(t *testing.T) {
	l := newLab(t, vault.Config{})
	dns := newResolver(t)
	rt := toPort(t, l.srv.Addr())
	rt.TLSClientConfig.RootCAs = l.srv.CertPool()
	c, _ := newClient(t, rt, l.credential(t))
	for _, rcode := range []int32{servfail, nxdomain, silence} {
		dns.rcode.Store(rcode)
		_, err := c.Get(keyvault.Background(within(t, resolverBudget)), l.ref)
		require.Equal(t, keyvault.CauseDNS, failure(t, err).Cause)
		dns.rcode.Store(found)
		_, err = c.Get(keyvault.Background(within(t, 3*time.Second)), l.ref)
		require.NoError(t, err)
		rt.CloseIdleConnections()
	}
}
