package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
)

const (
	// maxRequest leaves room to refuse a request of a megabyte by its fields;
	// what kube-apiserver sends is below 40 KiB.
	maxRequest = 2 << 20
	maxHeaders = 16 << 10
	// maxStreams bounds the calls under way on one connection. kube-apiserver's
	// start makes some hundreds; further ones wait at the client.
	maxStreams = 1000
	// handshakeTime bounds a connection that says nothing.
	handshakeTime = 10 * time.Second
	// lingerTime is how long a stop waits for connections without a call to
	// say goodbye.
	lingerTime = time.Second
	// flushTime is how long a stop waits, after the last call has returned, for
	// its answer to be written.
	flushTime = 100 * time.Millisecond
	// abandonTime is how long a hard stop waits for calls that ignore their context.
	abandonTime = 2 * time.Second
	// watchInterval is how often the socket file is looked at.
	watchInterval = time.Second
)

// ErrCut is what Run returns when Stop cut off calls that were under way.
var ErrCut = errors.New("calls under way were cut off")

// A Server serves KMS v2 on one socket, once.
type Server struct {
	cfg       Config
	log       *zap.Logger
	grpc      *grpc.Server
	conns     *conns
	gate      *gate
	calls     calls
	failures  failures
	strays    sync.Once
	strangers failures // rate limit of refused peers
	refusals  failures // rate limit of connections that could not be accepted

	stop     chan struct{} // closed by Stop
	stopOnce sync.Once
	serving  sync.WaitGroup // goroutines of Run

	// binding is held while the watcher may bind, and taken before mu: what a stop
	// has removed must not come back.
	binding sync.Mutex
	mu      sync.Mutex
	ran     bool
	stopped bool   // nothing may be bound any more
	bound   *bound // nil until Listen
	fault   error  // why the path does not lead here, as the watcher last saw it
	sock    *socket
	self    *selfCheck
}

// New makes a server; it reports every fault of cfg and touches nothing.
func New(cfg Config) (*Server, error) {
	faults := cfg.validate()
	addr, mode, gid, err := cfg.Socket.resolve()
	if err := errors.Join(faults, err); err != nil {
		return nil, err
	}
	s := &Server{
		cfg:   cfg,
		log:   cfg.Logger,
		conns: newConns(),
		gate:  &gate{},
		stop:  make(chan struct{}),
		self:  newSelfCheck(addr.Path),
		sock:  &socket{addr: addr, mode: mode, gid: gid, log: cfg.Logger},
	}
	creds := &peerCredentials{TransportCredentials: insecure.NewCredentials()}
	if addr.Abstract() {
		creds.admit = s.admitPeer
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(creds),
		grpc.StatsHandler(s.conns),
		grpc.ChainUnaryInterceptor(s.measure, s.recovered),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}),
		grpc.UnknownServiceHandler(s.stray),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		// Messages are small; the default of 32 KiB each way a connection is not.
		grpc.ReadBufferSize(4<<10),
		grpc.WriteBufferSize(4<<10),
	)
	s.grpc.RegisterService(desc(), &service{
		keyring: cfg.Keyring, readiness: cfg.Readiness, format: cfg.Format, version: cfg.APIVersion,
	})
	return s, nil
}

// Address is where the server listens.
func (s *Server) Address() Address { return s.sock.addr }

// Connections lists the open connections, oldest first.
func (s *Server) Connections() []Connection { return s.conns.list() }

// Listen binds the socket, so that connections are queued from now on. It does
// nothing else, and leaves nothing behind if it fails. Its error is a
// [*SocketError].
func (s *Server) Listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.bound != nil {
		return s.sockError("the server has been bound or stopped before", nil)
	}
	b, err := s.sock.listen(context.Background())
	if err != nil {
		return err
	}
	s.bound = b
	if w := s.sock.addr.Warning; w != "" {
		s.log.Warn("socket address: " + w)
	}
	s.log.Info("listening", zap.String("address", s.sock.addr.String()))
	return nil
}

// Run serves until ctx ends, then lets calls finish for StopGrace at most, and
// returns when nothing of it is left. It listens first if Listen was not
// called. Run works once. Its error is [ErrCut] if calls fell victim to Stop.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	first, ran := s.bound, s.ran
	s.ran = true
	s.mu.Unlock()
	if ran {
		return errors.New("running the plugin: it ran before")
	}
	if first == nil {
		select {
		case <-s.stop:
			return nil
		default:
		}
		if err := s.Listen(); err != nil {
			return err
		}
		s.mu.Lock()
		first = s.bound
		s.mu.Unlock()
	}
	watching, endWatch := context.WithCancel(ctx)
	s.serving.Go(func() { s.serve(first) })
	s.serving.Go(func() { s.watch(watching) })
	select {
	case <-ctx.Done():
	case <-s.stop:
	}
	endWatch()
	return s.shutdown()
}

// serve accepts connections from l until it is closed.
func (s *Server) serve(l net.Listener) {
	err := s.grpc.Serve(&gatedListener{Listener: l, gate: s.gate, failed: s.acceptFailed})
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
		// The watcher binds anew: Serve has closed l, and its file is gone.
		s.log.Error("accepting connections ended", zap.Error(err))
	}
}

// acceptFailed logs, now and then, that a client could not be let in. What gRPC
// does about it, trying again until it succeeds, it does in silence.
func (s *Server) acceptFailed(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	if silenced, ok := s.refusals.admit(failure{}, time.Now()); ok {
		s.log.Error("cannot accept a connection, trying again", zap.Error(err), zap.Int("not_logged_before", silenced))
	}
}

// Stop ends Run at once, without waiting for calls under way, and keeps it from
// starting. The socket is gone when Stop returns.
func (s *Server) Stop() {
	s.stopOnce.Do(func() { close(s.stop) })
	s.unbind()
}

// unbind closes the listener and removes its file, for good.
func (s *Server) unbind() {
	s.binding.Lock()
	defer s.binding.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.bound != nil {
		s.bound.Close()
	}
}

// shutdown ends all calls: in good order for a while, then at once.
func (s *Server) shutdown() error {
	s.unbind()
	s.gate.close()
	drained := make(chan struct{})
	s.serving.Go(func() {
		s.grpc.GracefulStop()
		close(drained)
	})
	if s.drain(drained) {
		s.serving.Wait()
		return nil
	}
	cut := s.cutCalls()
	ended := make(chan struct{})
	go func() {
		s.grpc.Stop()
		s.serving.Wait()
		close(ended)
	}()
	abandon := time.NewTimer(abandonTime)
	defer abandon.Stop()
	select {
	case <-ended:
		return cut
	case <-abandon.C:
		return fmt.Errorf("stopping the plugin: calls did not end within %v of being told to", abandonTime)
	}
}

// cutCalls is why a hard stop is not a good end: because somebody is still
// waiting, and it was Stop that had no more patience.
func (s *Server) cutCalls() error {
	select {
	case <-s.stop:
		if s.calls.count() > 0 {
			return ErrCut
		}
	default:
	}
	return nil
}

// drain reports whether everything ended by itself within the grace.
func (s *Server) drain(drained <-chan struct{}) bool {
	grace := time.NewTimer(s.cfg.StopGrace)
	defer grace.Stop()
	linger := time.NewTimer(lingerTime)
	defer linger.Stop()
	stop := s.stop
	var quiet <-chan struct{}
	for {
		select {
		case <-drained:
			return true
		case <-stop:
			if s.calls.count() > 0 {
				return false
			}
			stop = nil
			grace.Reset(flushTime)
		case <-grace.C:
			if n := s.calls.count(); n > 0 {
				s.log.Warn("calls still under way after the grace are cut off", zap.Int("calls", n), zap.Duration("grace", s.cfg.StopGrace))
			}
			return false
		case <-linger.C:
			// From here on a peer that does not answer holds nothing up but a call.
			quiet = s.calls.whenNone()
		case <-quiet:
			quiet = nil
			grace.Reset(flushTime)
		}
	}
}

// admitPeer decides who may use an abstract socket, which has no permissions of its own.
func (s *Server) admitPeer(p Peer) error {
	if p.Known && (p.UID == 0 || int(p.UID) == os.Geteuid()) {
		return nil
	}
	if silenced, ok := s.strangers.admit(failure{}, time.Now()); ok {
		s.log.Warn("refused a connection: an abstract socket serves root and this process's own user only",
			zap.Uint32("peer_uid", p.UID), zap.Int32("peer_pid", p.PID), zap.Int("not_logged_before", silenced))
	}
	return fmt.Errorf("uid %d may not connect", p.UID)
}

func (s *Server) sockError(text string, cause error) error {
	return &SocketError{Path: s.sock.addr.Path, Err: cause, Text: text + ": " + s.sock.addr.Path}
}
