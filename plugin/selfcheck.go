package plugin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	kmsapi "k8s.io/kms/apis/v2"
)

const (
	// selfBudget is how long a Status of our own may take. It answers from memory, so
	// even a very busy machine is far from that.
	selfBudget = 5 * time.Second
	// selfKept is how long its result serves all who ask.
	selfKept = time.Second
	// selfHeader marks a call of our own, and the answer to it.
	selfHeader = "azure-kms-plugin-self"
)

// A selfCheck calls Status over the socket as kube-apiserver does, on a connection of its
// own: whatever stands between the two stands between kube-apiserver and us as well.
// What Status says of the key is not the question.
type selfCheck struct {
	address string
	token   string // nobody else knows it, so nobody else answers for us

	mu    sync.Mutex
	call  chan struct{} // closed when the call under way ends; nil without one
	ended time.Time
	err   error
}

func newSelfCheck(address string) *selfCheck { return &selfCheck{address: address, token: rand.Text()} }

// own reports whether a call is one of ours.
func (c *selfCheck) own(ctx context.Context) bool {
	md, _ := metadata.FromIncomingContext(ctx)
	v := md.Get(selfHeader)
	return len(v) == 1 && v[0] == c.token
}

// run returns why Status does not answer; nil if it does. Callers share a call.
func (c *selfCheck) run() error {
	c.mu.Lock()
	if c.call == nil {
		if !c.ended.IsZero() && time.Since(c.ended) < selfKept {
			defer c.mu.Unlock()
			return c.err
		}
		c.call = make(chan struct{})
		go c.ask(c.call)
	}
	call := c.call
	c.mu.Unlock()
	<-call
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *selfCheck) ask(done chan struct{}) {
	err := c.status()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.call, c.ended, c.err = nil, time.Now(), err
	close(done)
}

func (c *selfCheck) status() error {
	ctx, cancel := context.WithTimeout(context.Background(), selfBudget)
	defer cancel()
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", c.address)
	}
	conn, err := grpc.NewClient("passthrough:///self", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial), grpc.WithDisableServiceConfig(), grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
	if err != nil {
		return fmt.Errorf("calling Status over the own socket: %w", err)
	}
	defer conn.Close()
	var header metadata.MD
	_, err = kmsapi.NewKeyManagementServiceClient(conn).Status(
		metadata.AppendToOutgoingContext(ctx, selfHeader, c.token), &kmsapi.StatusRequest{}, grpc.Header(&header), grpc.WaitForReady(true))
	if v := header.Get(selfHeader); len(v) == 1 && v[0] == c.token {
		return nil
	}
	switch {
	case ctx.Err() != nil, status.Code(err) == codes.DeadlineExceeded: // the server may notice first
		return fmt.Errorf("Status over the own socket has not answered within %v", selfBudget)
	case err == nil:
		return errors.New("Status over the own socket was answered by another process")
	}
	return fmt.Errorf("Status over the own socket fails: %w", err)
}

// ours answers a call of our own, and keeps it out of metrics, log and evidence. It does not
// wait for the first probe: what Status says is not the question.
func (c *selfCheck) ours(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
	connOf(ctx).isOwn()
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	resp, err := next(ctx, req)
	if err := grpc.SetHeader(ctx, metadata.Pairs(selfHeader, c.token)); err != nil {
		return nil, err
	}
	if err != nil {
		st, _ := statusOf(err)
		return nil, st.Err()
	}
	return resp, nil
}
