package health_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"azure-kms-plugin/health"
	"azure-kms-plugin/keyvault"
)

// A fakeVault "encrypts" by inverting bits. fail, if set, decides how an
// operation ends.
type fakeVault struct {
	mu       sync.Mutex
	calls    map[keyvault.Op]int
	times    []time.Time
	fail     func(keyvault.Op) keyvault.Reason
	garble   bool
	disabled bool
	expires  time.Time
	created  time.Time
	took     time.Duration
}

func (v *fakeVault) call(ctx context.Context, op keyvault.Op) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.calls == nil {
		v.calls = make(map[keyvault.Op]int)
	}
	v.calls[op]++
	v.times = append(v.times, time.Now())
	if v.took > 0 {
		select {
		case <-time.After(v.took):
		case <-ctx.Done():
			return &keyvault.Error{Op: op, Reason: keyvault.Canceled}
		}
	}
	if v.fail != nil {
		if r := v.fail(op); r != "" {
			return &keyvault.Error{Op: op, Key: key, Reason: r, Text: "scripted"}
		}
	}
	return nil
}

// set changes the vault while a prober uses it.
func (v *fakeVault) set(change func(*fakeVault)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(v)
}

func (v *fakeVault) total() (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.calls {
		n += c
	}
	return n
}

func invert(b []byte) []byte {
	b = slices.Clone(b)
	for i := range b {
		b[i] = ^b[i]
	}
	return b
}

func (v *fakeVault) Get(ctx context.Context, _ keyvault.Ref) (keyvault.Attributes, error) {
	err := v.call(ctx, keyvault.OpGet)
	v.mu.Lock()
	defer v.mu.Unlock()
	return keyvault.Attributes{Enabled: !v.disabled, Expires: v.expires, Created: v.created}, err
}

func (v *fakeVault) Encrypt(ctx context.Context, _ keyvault.Ref, p []byte) ([]byte, error) {
	if err := v.call(ctx, keyvault.OpEncrypt); err != nil {
		return nil, err
	}
	return invert(p), nil
}

func (v *fakeVault) Decrypt(ctx context.Context, _ keyvault.Ref, c []byte) ([]byte, error) {
	err := v.call(ctx, keyvault.OpDecrypt)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.garble {
		return bytes.Repeat([]byte("x"), 32), err
	}
	return invert(c), err
}

// always makes every operation among ops fail, or all if there are none.
func always(reason keyvault.Reason, ops ...keyvault.Op) func(keyvault.Op) keyvault.Reason {
	return func(op keyvault.Op) keyvault.Reason {
		if len(ops) == 0 || slices.Contains(ops, op) {
			return reason
		}
		return ""
	}
}

type rig struct {
	vault   *fakeVault
	tracker *health.Tracker
	prober  *health.Prober
	logs    *observer.ObservedLogs
}

// start runs a prober until the test ends.
func start(t *testing.T, v *fakeVault, graces health.Graces, memory string) *rig {
	core, logs := observer.New(zap.DebugLevel)
	log := zap.New(core)
	var m *health.Memory
	if memory != "" {
		m = health.OpenMemory(memory, key, log)
	}
	tr := health.NewTracker(health.Config{Key: key, Graces: graces, Memory: m, Logger: log})
	p := health.NewProber(health.ProberConfig{Vault: v, Tracker: tr, Memory: m, Logger: log})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return &rig{v, tr, p, logs}
}

func TestProber_Day(t *testing.T) {
	for _, tc := range []struct {
		name     string
		fail     func(keyvault.Op) keyvault.Reason
		gets     [2]int // bounds
		decrypts [2]int
	}{
		{"good", nil, [2]int{1400, 1480}, [2]int{1400, 1480}},
		// T04: the documented permissions of the existing plugins.
		{"without get permission", always(keyvault.AccessDenied, keyvault.OpGet), [2]int{20, 25}, [2]int{2780, 2940}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &fakeVault{fail: tc.fail}
				r := start(t, v, health.Graces{}, "")
				time.Sleep(24 * time.Hour)
				synctest.Wait()
				require.Less(t, v.total(), 3000)
				require.Equal(t, 1, v.calls[keyvault.OpEncrypt], "the canary is made once")
				require.GreaterOrEqual(t, v.calls[keyvault.OpGet], tc.gets[0])
				require.LessOrEqual(t, v.calls[keyvault.OpGet], tc.gets[1])
				require.GreaterOrEqual(t, v.calls[keyvault.OpDecrypt], tc.decrypts[0])
				require.LessOrEqual(t, v.calls[keyvault.OpDecrypt], tc.decrypts[1])
				require.Equal(t, health.Usable, r.tracker.View().Phase)
				require.Equal(t, tc.fail == nil, r.prober.MetadataAccess())
				require.LessOrEqual(t, r.logs.FilterLevelExact(zap.WarnLevel).Len(), 1, "one warning a day at most")
				require.NoError(t, r.prober.Late())
			})
		})
	}
}

// H01: whatever the vault answers, no more than two calls in any 27 seconds,
// the shortest period that the jitter makes, but in the first minute of a failure
// whose grace is shorter than that.
func TestProber_Pace(t *testing.T) {
	for _, reason := range []keyvault.Reason{"", keyvault.Unreachable, keyvault.Throttled, keyvault.KeyDisabled, keyvault.AccessDenied} {
		t.Run(string(reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &fakeVault{}
				n := 0
				v.fail = func(keyvault.Op) keyvault.Reason {
					if n++; n > 5 { // after the canary was made
						return reason
					}
					return ""
				}
				start(t, v, health.Graces{}, "")
				time.Sleep(time.Hour)
				synctest.Wait()
				var bad time.Time
				for i := 4; i < len(v.times); i++ {
					if i >= 5 && bad.IsZero() && reason == keyvault.KeyDisabled {
						bad = v.times[i]
					}
					if v.times[i-2].Before(bad.Add(time.Minute)) {
						require.GreaterOrEqual(t, v.times[i].Sub(v.times[i-2]), 9*time.Second)
						continue
					}
					require.GreaterOrEqual(t, v.times[i].Sub(v.times[i-2]), 27*time.Second, "calls %d to %d", i-2, i)
				}
				require.Greater(t, len(v.times), 100)
			})
		})
	}
}

func TestProber_Throttled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{fail: always(keyvault.Throttled)}
		start(t, v, health.Graces{}, "")
		time.Sleep(26 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, v.total(), "asked again after 5 s though it was told to back off")
	})
}

// One answer that asks for a long pause is remembered for a minute by the
// client, whoever it was that got it. The prober sees the end of that in time.
func TestProber_RecoversFromRetryAfter(t *testing.T) {
	for _, byTraffic := range []bool{false, true} {
		t.Run(fmt.Sprintf("by traffic %t", byTraffic), func(t *testing.T) {
			for range 50 { // the jitter is random
				synctest.Test(t, func(t *testing.T) {
					v := &throttler{}
					tr := health.NewTracker(health.Config{Key: key})
					p := health.NewProber(health.ProberConfig{Vault: v, Tracker: tr})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					go func() { _ = p.Run(ctx) }()
					time.Sleep(5 * time.Minute)
					if byTraffic {
						v.open.Store(time.Now().Add(time.Minute).UnixNano())
						tr.Observe(outcome(keyvault.OpDecrypt, keyvault.Throttled))
					} else {
						v.asked.Store(true)
						time.Sleep(67 * time.Second)
						require.NotZero(t, v.open.Load())
					}
					allowed := time.Unix(0, v.open.Load())
					time.Sleep(time.Until(allowed) + 45*time.Second)
					synctest.Wait()
					require.Equal(t, health.Usable, tr.View().Phase)
				})
			}
		})
	}
}

// A throttler answers from memory until a moment, as the client does.
type throttler struct {
	fakeVault
	asked atomic.Bool // for a pause, by the next decrypt
	open  atomic.Int64
}

func (v *throttler) Decrypt(ctx context.Context, k keyvault.Ref, c []byte) ([]byte, error) {
	e := &keyvault.Error{Op: keyvault.OpDecrypt, Key: k, Reason: keyvault.Throttled, RetryAfter: 2 * time.Hour, Text: "scripted"}
	switch {
	case v.asked.Swap(false):
		v.open.Store(time.Now().Add(time.Minute).UnixNano())
		return nil, e
	case time.Now().UnixNano() < v.open.Load():
		e.Remembered = true
		return nil, e
	}
	return v.fakeVault.Decrypt(ctx, k, c)
}

// H06 (b): bad at t0, good later.
func TestProber_SeesFaultAndRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{Outage: -1, Denial: -1, KeyState: -1}, "")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.NoError(t, r.tracker.Ready(t.Context()))

		v.set(func(v *fakeVault) { v.fail = always(keyvault.Unreachable) })
		time.Sleep(33 * time.Second)
		synctest.Wait()
		require.Equal(t, keyvault.Unreachable, reasonOf(t, r.tracker.Ready(t.Context())))

		time.Sleep(120 * time.Second)
		v.set(func(v *fakeVault) { v.fail = nil })
		time.Sleep(33 * time.Second)
		synctest.Wait()
		require.NoError(t, r.tracker.Ready(t.Context()))
	})
}

// H03: encrypt works, decrypt does not, or gives something else.
func TestProber_SeesWrongPlaintext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{Outage: -1}, "")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.NoError(t, r.tracker.Usable(t.Context()))
		v.set(func(v *fakeVault) { v.garble = true })
		time.Sleep(time.Minute + 10*time.Second)
		synctest.Wait()
		require.Equal(t, keyvault.Unknown, reasonOf(t, r.tracker.Ready(t.Context())))

		// Traffic that decrypts does not clear it: who knows what it got.
		r.tracker.Observe(outcome(keyvault.OpDecrypt, ""))
		require.Error(t, r.tracker.Ready(t.Context()))

		v.set(func(v *fakeVault) { v.garble = false })
		time.Sleep(time.Minute + 10*time.Second)
		synctest.Wait()
		require.NoError(t, r.tracker.Usable(t.Context()))
	})
}

func TestProber_GetTellsDisabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Whether the vault lets a disabled key decrypt is not the question
		// here: the decrypt that follows decides.
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(time.Minute)
		synctest.Wait()
		v.set(func(v *fakeVault) { v.disabled, v.fail = true, always(keyvault.KeyDisabled, keyvault.OpDecrypt) })
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, keyvault.KeyDisabled, reasonOf(t, r.tracker.Ready(t.Context())))
	})
}

// K03: an expired key is told by its attributes, before anybody encrypts, and
// the repair too. Reads go on: Status stays ok.
func TestProber_GetTellsExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := start(t, v, health.Graces{}, "")
		time.Sleep(time.Minute)
		v.set(func(v *fakeVault) { v.expires = time.Now() })
		time.Sleep(70 * time.Second)
		synctest.Wait()
		require.Equal(t, health.ReadOnly, r.tracker.View().Phase)
		require.Equal(t, keyvault.KeyExpired, r.tracker.View().Err.Reason)
		require.NoError(t, r.tracker.Ready(t.Context()))
		v.set(func(v *fakeVault) { v.expires = time.Now().Add(time.Hour) })
		time.Sleep(70 * time.Second)
		synctest.Wait()
		require.Equal(t, health.Usable, r.tracker.View().Phase)
	})
}

func TestProber_Memory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.state")
		ctx, cancel := context.WithCancel(t.Context())
		run := func(v *fakeVault) *health.Tracker {
			m := health.OpenMemory(path, key, nil)
			tr := health.NewTracker(health.Config{Key: key, Memory: m})
			p := health.NewProber(health.ProberConfig{Vault: v, Tracker: tr, Memory: m})
			go func() { _ = p.Run(ctx) }()
			return tr
		}
		end := func() {
			cancel()
			synctest.Wait()
			ctx, cancel = context.WithCancel(t.Context())
		}
		run(&fakeVault{})
		time.Sleep(time.Minute)
		end()

		// The key has expired meanwhile: the kept canary is decrypted.
		v := &fakeVault{fail: always(keyvault.KeyExpired, keyvault.OpEncrypt)}
		tr := run(v)
		require.NoError(t, tr.Ready(t.Context()))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, health.Usable, tr.View().Phase)
		require.Zero(t, v.calls[keyvault.OpEncrypt])
		end()

		// Restarted in an outage: the first answer is ok, at once.
		start := time.Now()
		tr = run(&fakeVault{fail: always(keyvault.Unreachable)})
		require.NoError(t, tr.Ready(t.Context()))
		require.Zero(t, time.Since(start))
		time.Sleep(time.Hour)
		require.NoError(t, tr.Ready(t.Context()))
		end()

		// The next one counts on from the first failure.
		time.Sleep(23*time.Hour + time.Minute)
		tr = run(&fakeVault{fail: always(keyvault.Unreachable)})
		require.Equal(t, keyvault.Unreachable, reasonOf(t, tr.Ready(t.Context())))
		end()

		// A loss outlives a restart, and only a decrypt ends it.
		tr = run(&fakeVault{})
		time.Sleep(time.Minute)
		require.NoError(t, tr.Ready(t.Context()))
		end()
		run(&fakeVault{fail: always(keyvault.KeyDisabled)})
		time.Sleep(time.Minute)
		end()
		tr = run(&fakeVault{fail: always(keyvault.Unreachable)})
		require.Equal(t, keyvault.KeyDisabled, reasonOf(t, tr.Ready(t.Context())))
		end()
		tr = run(&fakeVault{took: time.Second})
		require.NoError(t, tr.Ready(t.Context()), "waits for the first probe before it repeats an old loss")
		end()
	})
}

// A canary that the vault cannot open is thrown away once: it may be the file
// that is broken.
func TestProber_BrokenCanary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.state")
		start(t, &fakeVault{}, health.Graces{}, path)
		time.Sleep(time.Minute)
		synctest.Wait()

		n := 0
		v := &fakeVault{fail: func(op keyvault.Op) keyvault.Reason {
			if n++; n == 1 {
				return keyvault.BadCiphertext
			}
			return ""
		}}
		r := start(t, v, health.Graces{}, path)
		synctest.Wait()
		require.Equal(t, health.Usable, r.tracker.View().Phase)
		require.Equal(t, 1, v.calls[keyvault.OpEncrypt])
	})
}

func TestProber_Late(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{took: time.Hour} // a client that breaks its promise
		r := start(t, v, health.Graces{}, "")
		time.Sleep(89 * time.Second)
		require.NoError(t, r.prober.Late())
		time.Sleep(2 * time.Second)
		require.Error(t, r.prober.Late())
	})
}

func TestProber_StopSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{took: time.Minute}
		tr := health.NewTracker(health.Config{Key: key})
		p := health.NewProber(health.ProberConfig{Vault: v, Tracker: tr})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Second)
		begin := time.Now()
		cancel()
		require.NoError(t, <-done)
		require.Zero(t, time.Since(begin))
		require.Equal(t, health.Starting, tr.View().Phase)
		require.Nil(t, tr.View().Err)
	})
}

// An error that the client did not make is still a failure.
func TestProber_ForeignError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := health.NewTracker(health.Config{Key: key})
		p := health.NewProber(health.ProberConfig{Vault: &brokenVault{}, Tracker: tr})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = p.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, keyvault.Unknown, tr.View().Err.Reason)
		require.NotContains(t, tr.View().Err.Error(), "SECRET")
		cancel()
	})
}

type brokenVault struct{ fakeVault }

func (*brokenVault) Encrypt(context.Context, keyvault.Ref, []byte) ([]byte, error) {
	return nil, errors.New("SECRET")
}
