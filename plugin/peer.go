package plugin

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
)

// A Peer is the process at the other end of a connection, as the kernel vouches
// for it at the time of the connect.
type Peer struct {
	// PID is 0 when the process is in a PID namespace that this one cannot see.
	PID int32
	UID uint32
	GID uint32
	// Known is false where the kernel does not say.
	Known bool
}

// peerCredentials looks at the peer instead of shaking hands: kube-apiserver
// dials without transport security, and on a unix socket the kernel knows more
// than a certificate would.
type peerCredentials struct {
	credentials.TransportCredentials // insecure, for what only clients call
	// admit refuses a connection by its peer. Optional.
	admit func(Peer) error
}

// peerInfo is what a handshake leaves behind for the connection.
type peerInfo struct {
	credentials.CommonAuthInfo
	peer Peer
	// raw is the accepted connection as the gate gave it out; nil in tests without one.
	raw *gatedConn
}

func (peerInfo) AuthType() string { return "peer" }

func (p *peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info := peerInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}
	if raw, ok := conn.(*gatedConn); ok {
		// gRPC reads a bare *net.UnixConn without holding a buffer for it.
		info.raw, conn = raw, raw.Conn
	}
	info.peer = peerOf(conn)
	if p.admit != nil {
		if err := p.admit(info.peer); err != nil {
			return nil, nil, err
		}
	}
	return conn, info, nil
}

func (p *peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("peer credentials are for servers")
}

func (p *peerCredentials) Clone() credentials.TransportCredentials {
	c := *p
	return &c
}
