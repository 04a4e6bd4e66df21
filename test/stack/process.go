package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// A Command describes a child process.
type Command struct {
	Name string // for messages
	Path string // of the executable
	Args []string
	// Env is the whole environment of the child; nothing is inherited, so
	// that a proxy or a token of the machine cannot leak into a test.
	Env []string
	// Log is the file that gets the child's output. It is appended to, so
	// that it tells the whole story over restarts.
	Log string
	// Grace is how long Stop waits after SIGTERM before it kills; zero means
	// ten seconds.
	Grace time.Duration
	// DiesOfTerm says that the program ends by raising SIGTERM again, as
	// etcd does, so that such an end is a clean one.
	DiesOfTerm bool
}

// A Process is a running or ended child.
type Process struct {
	cmd  *exec.Cmd
	name string
	log  string
	// logStart is where this run begins in the log file.
	logStart int64
	grace    time.Duration
	termOK   bool
	asked    atomic.Bool   // the end was asked for
	done     chan struct{} // closed after err is set
	err      error         // why it ended
}

// Start starts c. The caller must end it with Stop or Kill.
func Start(c Command) (*Process, error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", c.Name, err)
	}
	defer log.Close()
	at, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", c.Name, err)
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append([]string{}, c.Env...) // never nil, which would inherit
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttr()
	p := &Process{
		cmd: cmd, name: c.Name, log: c.Log, logStart: at,
		grace: c.Grace, termOK: c.DiesOfTerm, done: make(chan struct{}),
	}
	if p.grace == 0 {
		p.grace = 10 * time.Second
	}
	started := make(chan error)
	go func() {
		// The kernel ties a child to the thread that made it, so that
		// thread has to stay until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		close(started)
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	return p, nil
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Failed reports an end that nobody asked for, with the end of the log.
func (p *Process) Failed() error {
	if p.Running() || p.asked.Load() {
		return nil
	}
	return p.describe(fmt.Errorf("%s ended by itself: %w", p.name, endOf(p.err)))
}

// Stop asks the process to end and kills it when the grace is over. It
// returns an error unless the process ended in time with status 0.
func (p *Process) Stop() error {
	if p == nil {
		return nil
	}
	if err := p.Failed(); err != nil {
		return err
	}
	p.asked.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	select {
	case <-p.done:
	case <-time.After(p.grace):
		p.Kill()
		return p.describe(fmt.Errorf("%s did not stop within %v and was killed", p.name, p.grace))
	}
	if p.err != nil && !(p.termOK && endedBy(p.err, syscall.SIGTERM)) {
		return p.describe(fmt.Errorf("stopping %s: %w", p.name, p.err))
	}
	return nil
}

// Kill ends the process at once, as a crash or the kernel's OOM killer would,
// and waits until it is gone.
func (p *Process) Kill() {
	if p == nil {
		return
	}
	p.asked.Store(true)
	_ = p.cmd.Process.Kill() // it fails only when there is nothing left to kill
	<-p.done
}

// WaitReady calls probe until it succeeds. It gives up when the process ends
// or ctx does.
func (p *Process) WaitReady(ctx context.Context, probe func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			if failed := p.Failed(); failed != nil {
				return failed
			}
			return fmt.Errorf("%s was stopped while waiting for it", p.name)
		case <-ctx.Done():
			return p.describe(fmt.Errorf("waiting for %s: %w (last answer: %w)", p.name, context.Cause(ctx), err))
		case <-tick.C:
		}
	}
}

// Output is what the process has written in this run, at most the last limit bytes.
func (p *Process) Output(limit int64) (string, error) {
	f, err := os.Open(p.log)
	if err != nil {
		return "", err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(p.logStart, end-limit), end))
	return string(b), err
}

// describe adds the last lines of the log to err.
func (p *Process) describe(err error) error {
	out, readErr := p.Output(8 << 10)
	if readErr != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) > 15 {
		lines = lines[len(lines)-15:]
	}
	return fmt.Errorf("%w\n  end of %s:\n    %s", err, p.log, strings.Join(lines, "\n    "))
}

func endedBy(err error, sig syscall.Signal) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == sig
}

func endOf(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// LogFile is where the process's output goes.
func (p *Process) LogFile() string { return p.log }
