//go:build linux

package stack_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/test/stack"
)

func shell(t *testing.T, script string) stack.Command {
	t.Helper()
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	return stack.Command{
		Name: "child", Path: sh, Args: []string{"-c", script},
		Log: filepath.Join(t.TempDir(), "child.log"),
	}
}

func start(t *testing.T, c stack.Command) *stack.Process {
	t.Helper()
	p, err := stack.Start(c)
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	return p
}

// says waits until the child has written text.
func says(t *testing.T, p *stack.Process, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, p.WaitReady(ctx, func(context.Context) error {
		out, err := p.Output(1 << 20)
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("%q so far", out)
		}
		return err
	}))
}

func TestProcess_Stop(t *testing.T) {
	p := start(t, shell(t, `trap 'echo leaving; exit 0' TERM; echo up; while :; do sleep 0.05; done`))
	says(t, p, "up")
	require.True(t, p.Running())
	require.NoError(t, p.Stop())
	require.False(t, p.Running())
	require.NoError(t, p.Failed(), "an end that was asked for is no failure")
	out, err := p.Output(1 << 20)
	require.NoError(t, err)
	require.Equal(t, "up\nleaving\n", out)
	require.NoError(t, p.Stop(), "stopping twice does no harm")
}

func TestProcess_StopReportsABadEnd(t *testing.T) {
	p := start(t, shell(t, `trap 'echo no good; exit 3' TERM; echo up; while :; do sleep 0.05; done`))
	says(t, p, "up")
	err := p.Stop()
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "no good")
}

func TestProcess_StopKillsTheDeaf(t *testing.T) {
	c := shell(t, `trap '' TERM; echo up; while :; do sleep 0.05; done`)
	c.Grace = 50 * time.Millisecond
	p := start(t, c)
	says(t, p, "up")
	require.ErrorContains(t, p.Stop(), "did not stop within 50ms and was killed")
	require.False(t, p.Running())
}

func TestProcess_EndOfItsOwn(t *testing.T) {
	p := start(t, shell(t, `echo the port is taken >&2; exit 4`))
	err := p.WaitReady(t.Context(), func(context.Context) error { return errors.New("not yet") })
	require.ErrorContains(t, err, "child ended by itself: exit status 4")
	require.ErrorContains(t, err, "the port is taken")
	require.ErrorContains(t, p.Stop(), "ended by itself")
}

func TestProcess_WaitReadyTellsWhatItSaw(t *testing.T) {
	p := start(t, shell(t, `echo still loading; exec sleep 60`))
	says(t, p, "loading")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 80*time.Millisecond, errors.New("not ready after 80 ms"))
	defer cancel()
	err := p.WaitReady(ctx, func(context.Context) error { return errors.New("status 503") })
	require.ErrorContains(t, err, "waiting for child: not ready after 80 ms (last answer: status 503)")
	require.ErrorContains(t, err, "still loading")
}

func TestProcess_InheritsNothing(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example")
	c := shell(t, `echo "[$HTTPS_PROXY$GIVEN]"; exec sleep 60`)
	c.Env = []string{"GIVEN=given"}
	says(t, start(t, c), "[given]")
}

func TestProcess_OutputIsOfThisRun(t *testing.T) {
	c := shell(t, `echo "run $$"; exec sleep 60`)
	first := start(t, c)
	says(t, first, "run ")
	first.Kill()
	second := start(t, c)
	says(t, second, fmt.Sprintf("run %d", second.PID()))
	out, err := second.Output(1 << 20)
	require.NoError(t, err)
	require.NotContains(t, out, fmt.Sprintf("run %d\n", first.PID()))
}

func TestProcess_DiesOfTerm(t *testing.T) {
	c := shell(t, `echo up; exec sleep 60`)
	p := start(t, c)
	says(t, p, "up")
	require.ErrorContains(t, p.Stop(), "signal: terminated")
	c.DiesOfTerm = true
	p = start(t, c)
	says(t, p, "up")
	require.NoError(t, p.Stop())
}

// orphanVar makes this test binary start a child and tell its number.
const orphanVar = "STACK_TEST_ORPHAN"

func TestMain(m *testing.M) {
	if log := os.Getenv(orphanVar); log != "" {
		p, err := stack.Start(stack.Command{Name: "orphan", Path: "/bin/sleep", Args: []string{"60"}, Log: log})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		<-p.Done() // until we are killed
	}
	os.Exit(m.Run())
}

// TestProcess_DoesNotOutliveItsParent kills a parent that has no chance to
// stop its child.
func TestProcess_DoesNotOutliveItsParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), orphanVar+"="+filepath.Join(t.TempDir(), "log"))
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0))
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait() // it was killed
	require.Eventually(t, func() bool { return !alive(pid) }, 20*time.Second, 10*time.Millisecond)
}

// alive reports whether a process runs; one that waits to be reaped does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
