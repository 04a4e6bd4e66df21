package plugin_test

import (
	"context"
	"net"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/plugin"
)

// D02: idle connections, and such as have never said a word, hold nothing up.
func TestStop_Idle(t *testing.T) {
	base := runtime.NumGoroutine()
	r := newRig(t)
	require.NoError(t, r.Listen())
	r.run()
	for range 5 {
		r.dial(t).status(t)
		silent, err := net.Dial("unix", r.path)
		require.NoError(t, err)
		defer silent.Close()
		// One that has begun HTTP/2 and will not answer the goodbye.
		deaf, err := net.Dial("unix", r.path)
		require.NoError(t, err)
		defer deaf.Close()
		_, err = deaf.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return len(r.Connections()) == 10 }, 5*time.Second, time.Millisecond)
	r.cancel()
	require.NoError(t, <-r.done)
	require.NoFileExists(t, r.path)
	require.Error(t, r.CheckSocket())
	// What is left belongs to the five clients, which are trying to reconnect.
	require.LessOrEqual(t, runtime.NumGoroutine(), base+5*4+5)
}

// gRPC alone would wait 5 s for the deaf and 10 s for the silent.
func TestStop_IdleTakesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		c, stop := r.serveInMemory(t)
		c.status(t)
		for _, words := range []string{"", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"} {
			conn, err := r.memory.Dial()
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write([]byte(words))
			require.NoError(t, err)
		}
		synctest.Wait()
		start := time.Now()
		r.cancel()
		require.NoError(t, <-r.done)
		require.Equal(t, time.Second+plugin.FlushTime, time.Since(start))
		stop()
	})
}

// The last answer is written before the connections are closed, however long
// after the signal its call ends.
func TestStop_LastAnswerIsWritten(t *testing.T) {
	for _, late := range []time.Duration{0, 900 * time.Millisecond, time.Second, 1500 * time.Millisecond} {
		for range 50 {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				c, stop := r.serveInMemory(t)
				r.keyring.do(func(context.Context) error { time.Sleep(late); return nil })
				answered := make(chan error, 1)
				go func() {
					_, err := c.Encrypt(context.Background(), &kmsapi.EncryptRequest{Plaintext: seed()})
					answered <- err
				}()
				synctest.Wait()
				r.cancel()
				require.NoError(t, <-answered)
				require.NoError(t, <-r.done)
				stop()
			})
		}
	}
}

func TestStop_LeavesNoGoroutine(t *testing.T) {
	base := runtime.NumGoroutine()
	r := newRig(t)
	require.NoError(t, r.Listen())
	r.run()
	c := r.dial(t)
	c.status(t)
	require.NoError(t, os.Remove(r.path))
	require.Eventually(t, func() bool { return r.CheckSocket() == nil }, 10*time.Second, 10*time.Millisecond)
	c.conn.Close()
	r.cancel()
	require.NoError(t, <-r.done)
	backTo(t, base)
}

// A call under way is finished; new ones are not begun.
func TestStop_FinishesCalls(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.Listen())
	r.run()
	c := r.dial(t)
	entered, release := make(chan struct{}), make(chan struct{})
	r.keyring.do(func(context.Context) error { close(entered); <-release; return nil })
	result := make(chan error, 1)
	go func() {
		_, err := c.Encrypt(context.Background(), &kmsapi.EncryptRequest{Plaintext: seed()})
		result <- err
	}()
	<-entered
	r.cancel()
	require.Eventually(t, func() bool { _, err := os.Lstat(r.path); return err != nil }, 5*time.Second, time.Millisecond,
		"a successor must be able to bind while the last calls end")
	select {
	case <-r.done:
		t.Fatal("Run returned with a call under way")
	default:
	}
	close(release)
	require.NoError(t, <-result)
	require.NoError(t, <-r.done)
}

// hung serves in a bubble with one Encrypt that hangs until release is closed
// or, if polite, its context ends.
func hung(t *testing.T, polite bool) (r *rig, stop func(), release chan struct{}, result chan error) {
	r = newRig(t, func(c *plugin.Config) { c.StopGrace = 7 * time.Second })
	c, stop := r.serveInMemory(t)
	release, result = make(chan struct{}), make(chan error, 1)
	entered := make(chan struct{})
	r.keyring.do(func(ctx context.Context) error {
		close(entered)
		if polite {
			<-ctx.Done()
			return ctx.Err()
		}
		<-release
		return nil
	})
	go func() {
		_, err := c.Encrypt(context.Background(), &kmsapi.EncryptRequest{Plaintext: seed()})
		result <- err
	}()
	<-entered
	return r, stop, release, result
}

func TestStop_GraceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop, _, result := hung(t, true)
		start := time.Now()
		r.cancel()
		require.NoError(t, <-r.done)
		require.Equal(t, 7*time.Second, time.Since(start))
		require.Equal(t, codes.Unavailable, status.Code(<-result))
		require.Contains(t, r.log.String(), "cut off")
		stop()
	})
}

// A second signal does not wait for the grace.
func TestStop_AtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop, _, result := hung(t, true)
		start := time.Now()
		r.cancel()
		time.Sleep(time.Second)
		r.Stop()
		r.Stop()
		require.ErrorIs(t, <-r.done, plugin.ErrCut)
		require.Equal(t, time.Second, time.Since(start))
		require.Error(t, <-result)
		stop()
	})
}

func TestStop_WithoutGraceAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop, _, _ := hung(t, true)
		start := time.Now()
		r.Stop()
		require.ErrorIs(t, <-r.done, plugin.ErrCut)
		require.Zero(t, time.Since(start))
		stop()
	})
}

// Two signals in quick succession, as timeout(1) sends them, are no fault when
// nobody was waiting.
func TestStop_AtOnceWithNothingUnderWay(t *testing.T) {
	r := serve(t)
	r.dial(t).status(t)
	r.cancel()
	r.Stop()
	require.NoError(t, <-r.done)
}

// A call that ignores its context cannot hold the process: it is reported.
func TestStop_AbandonsWhatDoesNotListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop, release, _ := hung(t, false)
		start := time.Now()
		r.cancel()
		require.ErrorContains(t, <-r.done, "did not end")
		require.Equal(t, 9*time.Second, time.Since(start))
		close(release)
		stop()
	})
}

// D02: every order of Listen, Run and Stop ends without a file or a panic.
func TestStop_AnyTime(t *testing.T) {
	t.Run("before anything", func(t *testing.T) {
		r := newRig(t)
		r.Stop()
		require.Error(t, r.CheckSocket())
		require.NoError(t, r.Run(t.Context()))
		require.Error(t, r.Listen())
		require.NoFileExists(t, r.path)
	})
	t.Run("bound, never run", func(t *testing.T) {
		r := newRig(t)
		require.Error(t, r.CheckSocket())
		require.NoError(t, r.Listen())
		require.NoError(t, r.CheckPath())
		require.Error(t, r.Listen())
		r.Stop()
		require.NoFileExists(t, r.path)
		require.NoError(t, r.Run(t.Context()))
	})
	t.Run("a context that has ended", func(t *testing.T) {
		r := newRig(t)
		require.NoError(t, r.Listen())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, r.Run(ctx))
		require.NoFileExists(t, r.path)
	})
	t.Run("run without listen, twice", func(t *testing.T) {
		r := serve(t)
		r.dial(t).status(t)
		require.ErrorContains(t, r.Run(t.Context()), "ran before")
		require.NoError(t, r.CheckSocket())
	})
	t.Run("while the first call waits for the vault", func(t *testing.T) {
		entered := make(chan struct{}, 1)
		r := newRig(t, func(c *plugin.Config) {
			c.StopGrace = 50 * time.Millisecond
			c.Readiness = ready(func(ctx context.Context) error { entered <- struct{}{}; <-ctx.Done(); return ctx.Err() })
		})
		r.run()
		c := r.dial(t)
		go c.Status(context.Background(), &kmsapi.StatusRequest{})
		<-entered
		r.cancel()
		require.NoError(t, <-r.done)
		require.NoFileExists(t, r.path)
	})
	for range 20 {
		r := newRig(t)
		r.run()
		go r.Stop()
		r.cancel()
		<-r.done
		r.Stop()
		require.NoFileExists(t, r.path)
	}
}
