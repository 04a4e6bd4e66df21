package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	kmsapi "k8s.io/kms/apis/v2"
)

// figures is all that is measured of one plugin. Times are in milliseconds,
// sizes in MiB.
type figures struct {
	Name string

	Binary      float64
	SocketAfter startTime
	ReadyAfter  startTime
	Restart     startTime // until the first good Status, in the folder of a process before
	FloorRSS    float64   // of the plainest server
	StartCalls  int       // Key Vault calls of one start, up to the first good Status

	CallsPerStatus, CallsPerProbe, CallsPerDay float64
	IdleCalls                                  map[string]int // seen in the idle window, by operation

	// The same of a process that follows the newest version. Only ours has one.
	FollowCallsPerDay float64        `json:",omitempty"`
	FollowIdleCalls   map[string]int `json:",omitempty"`

	IdleRSS, LoadRSS, PeakRSS float64

	StatusFar     latency // vault 50 ms away
	StatusHanging latency
	StatusRefused latency
	StatusDropped latency

	DirectEncrypt, DirectDecrypt     float64 // p50
	AddedEncrypt, AddedDecrypt       float64 // median of the paired differences
	AddedEncryptP99, AddedDecryptP99 float64 // and their p99

	RatioNear, RatioFar float64 // decrypts a second against the direct client
	RateNear, RateFar   float64 // and in absolute terms

	HTTPLoad *httpLoad `json:",omitempty"` // nil for a server without HTTP ports

	NewConnections int
	IdenticalCalls int

	Grid []gridLine `json:",omitempty"`
}

// startTime is the spread of some starts. Floor is the median of the plainest
// server's, each started just before; 0 where there was none.
type startTime struct{ Median, Min, Max, Floor float64 }

func (s startTime) String() string {
	text := fmt.Sprintf("%.1f (%.1f-%.1f)", s.Median, s.Min, s.Max)
	if s.Floor > 0 {
		text += fmt.Sprintf(", %.2f of the floor's", s.ofFloor())
	}
	return text
}

func (s startTime) ofFloor() float64 { return s.Median / s.Floor }

func spread(s sample) startTime {
	return startTime{Median: s.at(0.5), Min: ms(slices.Min(s)), Max: ms(slices.Max(s))}
}

// A bench measures one target. Its methods are in the files of their subject.
type bench struct {
	options
	e       *emulator
	dir     string
	log     io.Writer
	process *process
	direct  *direct
	f       *figures
}

// measure runs everything. Targets idle side by side, since that only takes
// time, and are loaded one after the other.
func (r *report) measure(ctx context.Context, o options, targets []target, log io.Writer) error {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e, err := startEmulator()
	if err != nil {
		return err
	}
	defer e.stop()

	floor := target{name: "the plainest server", vault: "bench-floor"}
	if floor.version, err = e.createKey(floor.vault); err != nil {
		return err
	}
	benches := make([]*bench, len(targets))
	for i, t := range targets {
		if t.bin, err = filepath.Abs(t.bin); err != nil {
			return err
		}
		if t.version, err = e.createKey(t.vault); err != nil {
			return err
		}
		b := &bench{options: o, e: e, dir: dir, log: log, f: &figures{Name: t.name}}
		if err := b.measureStart(ctx, t, floor); err != nil {
			return err
		}
		defer b.process.stop()
		if b.direct, err = newDirect(ctx, e.access, t.vault, t.version); err != nil {
			return fmt.Errorf("making the direct client: %w", err)
		}
		defer b.direct.close()
		benches[i] = b
	}
	if err := measureIdleAll(ctx, targets[0], benches); err != nil {
		return fmt.Errorf("measuring idle plugins: %w", err)
	}
	for _, b := range benches {
		if err := b.measureLoaded(ctx); err != nil {
			return fmt.Errorf("measuring %s: %w", b.f.Name, err)
		}
		r.Targets = append(r.Targets, b.f)
	}
	if r.Bare, err = measureBare(ctx, o, e, dir, log); err != nil {
		return fmt.Errorf("measuring a bare server: %w", err)
	}
	p, err := startFloor(ctx, o.floor, floor, e, dir)
	if err != nil {
		return err
	}
	if r.Plain, err = measureCost(ctx, o, e, p, log); err != nil {
		return fmt.Errorf("measuring the plainest server: %w", err)
	}
	return nil
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.log, "%s  %s: %s\n", time.Now().Format(time.TimeOnly), b.f.Name, fmt.Sprintf(format, args...))
}

// measureLoaded takes every figure that needs calls. The memory after the load
// is read before the vault dies, as the existing plugins' was.
func (b *bench) measureLoaded(ctx context.Context) error {
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"calls for Status and health probes", b.measureCalls},
		{"what is added to a direct call", b.measureAdded},
		{"throughput against a direct client", b.measureThroughput},
		{"connections", b.measureConnections},
		{"identical Decrypts", b.measureIdentical},
		{"latencies", b.measureGrid},
		{"memory", b.measureMemory},
		{"load on the HTTP ports", b.measureHTTP},
		{"Status while the vault is far or dead", b.measureDead},
	} {
		b.say("%s", step.name)
		if err := b.e.only(); err != nil {
			return err
		}
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return b.e.only()
}

func (b *bench) measureMemory(context.Context) (err error) {
	if b.f.LoadRSS, err = b.process.memory("VmRSS"); err != nil {
		return err
	}
	b.f.PeakRSS, err = b.process.memory("VmHWM")
	return err
}

// seal has the plugin encrypt n new seeds: what it may be asked to decrypt is
// only what it wrote itself, since wire formats differ.
func (b *bench) seal(ctx context.Context, n int) ([]*kmsapi.EncryptResponse, error) {
	sealed := make([]*kmsapi.EncryptResponse, n)
	_, _, err := load(ctx, n, 4, func(ctx context.Context, i int) (err error) {
		sealed[i], err = b.process.encrypt(ctx, newSeed())
		return err
	})
	return sealed, err
}

// newSeed is what kube-apiserver encrypts: 32 random bytes.
func newSeed() []byte {
	seed := make([]byte, 32)
	rand.Read(seed) // never fails
	return seed
}
