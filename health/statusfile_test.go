package health_test

import (
	"bytes"
	"cmp"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"azure-kms-plugin/health"
	"azure-kms-plugin/health/status"
)

// A teller makes documents that a test can change.
type teller struct {
	mu sync.Mutex
	d  status.Document
}

func (t *teller) set(change func(*status.Document)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.d)
}

func (t *teller) status() *status.Document {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.d
	d.APIVersion, d.Kind, d.StaleAfterSeconds = status.APIVersion, status.Kind, 90
	d.ObservedTime = time.Now()
	d.Phase = cmp.Or(d.Phase, status.Starting)
	return &d
}

// keep runs a StatusFile in the bubble.
func keep(t *testing.T, path string, tell *teller, log *zap.Logger) (stop func()) {
	f := health.NewStatusFile(health.StatusFileConfig{Path: path, Status: tell.status, Logger: log})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

func readStatus(t *testing.T, path string) *status.Document {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	d, err := status.Decode(bytes.NewReader(data))
	require.NoError(t, err)
	return d
}

// The file is there at once, with its mode, whatever was there before; a change is in
// it within a second, and without one it never grows stale.
func TestStatusFile(t *testing.T) {
	for _, umask := range []int{0, 0o777} {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "status.json")
			require.NoError(t, os.WriteFile(path+".new", []byte("left by a crash"), 0o666))
			old := syscall.Umask(umask)
			defer syscall.Umask(old)
			tell := &teller{}
			tell.set(func(d *status.Document) { d.Phase = status.Usable })
			stop := keep(t, path, tell, nil)
			synctest.Wait()
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o640), info.Mode())
			require.NoFileExists(t, path+".new")
			first := readStatus(t, path)
			require.Equal(t, status.Usable, first.Phase)

			changes := []func(*status.Document){
				func(d *status.Document) { d.Phase = status.Degraded },
				func(d *status.Document) { d.Failure = &status.Failure{Reason: "Unreachable"} },
				func(d *status.Document) { d.Failure = &status.Failure{Reason: "Throttled"} },
				func(d *status.Document) { d.Answer.OK = true },
				func(d *status.Document) { d.KeyID = "a" },
				func(d *status.Document) { d.Conditions = []status.Condition{{Type: status.KeyAvailable}} },
				func(d *status.Document) {
					d.Alarms = []status.Alarm{{Severity: status.Critical, Reason: "KeyDisabled", Version: "v"}}
				},
				func(d *status.Document) { d.Keys = []status.Key{{Version: "v"}} },
				func(d *status.Document) { d.Keys = []status.Key{{Version: "v", Enabled: new(false)}} },
				func(d *status.Document) { d.Keys = []status.Key{{Version: "v", Enabled: new(true)}} },
				func(d *status.Document) { d.Rotation = &status.Rotation{To: "v"} },
			}
			for i, change := range changes {
				before := readStatus(t, path)
				tell.set(change)
				time.Sleep(time.Second + time.Millisecond)
				synctest.Wait()
				require.True(t, readStatus(t, path).ObservedTime.After(before.ObservedTime), "change %d", i)
			}

			// What happens all the time is not written all the time.
			before := readStatus(t, path)
			tell.set(func(d *status.Document) {
				d.LastSuccessTime = new(time.Now())
				d.Activity.OutageSeconds = 7
				d.Clients = []status.Client{{PID: 1}}
				d.Keys = []status.Key{{Version: "v", Enabled: new(true), Encrypts: 5, LastEncryptTime: new(time.Now())}}
			})
			time.Sleep(10 * time.Second)
			synctest.Wait()
			require.Equal(t, before, readStatus(t, path))
			for range 100 {
				time.Sleep(7 * time.Second)
				synctest.Wait()
				require.Less(t, time.Since(readStatus(t, path).ObservedTime), 32*time.Second)
			}
			require.EqualValues(t, 5, readStatus(t, path).Keys[0].Encrypts)

			// The end tells the last change, and that it is the end.
			before = readStatus(t, path)
			tell.set(func(d *status.Document) { d.Phase = status.Lost })
			stop()
			last := readStatus(t, path)
			require.Equal(t, status.Lost, last.Phase)
			require.True(t, last.ObservedTime.After(before.ObservedTime))
			require.Equal(t, status.ExitUnknown, last.Exit(time.Now()), "what a dead process said is not believed")
		})
	}
}

// A file that cannot be written is said once, tried on, and said when it is again.
func TestStatusFile_Failing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		dir := filepath.Join(t.TempDir(), "gone")
		stop := keep(t, filepath.Join(dir, "status.json"), &teller{}, zap.New(core))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, logs.Len())
		require.Equal(t, zap.WarnLevel, logs.All()[0].Level)
		require.NoError(t, os.Mkdir(dir, 0o700))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 2, logs.Len())
		require.Equal(t, "status file is written again", logs.All()[1].Message)
		readStatus(t, filepath.Join(dir, "status.json"))
		stop()
		require.Equal(t, 2, logs.Len())
	})
}

// A disk that does not answer does not keep the process from ending. (What asks for
// the document stands for the disk here: that one cannot be made to hang.)
func TestStatusFile_HangingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		f := health.NewStatusFile(health.StatusFileConfig{Path: filepath.Join(t.TempDir(), "s"), Status: func() *status.Document {
			<-hang
			return &status.Document{}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		require.NoError(t, f.Run(ctx))
		require.Equal(t, 2*time.Second, time.Since(begin))
		close(hang)
		synctest.Wait() // it still writes
	})
}
