package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// startFloor starts the plainest server that the plugin's libraries make, with a
// key of its own, and waits for a good Status.
func startFloor(ctx context.Context, bin string, t target, e *emulator, dir string) (*process, error) {
	p := &process{target: t, exited: make(chan struct{})}
	socket := filepath.Join(dir, "floor.sock")
	p.cmd = exec.Command(bin, socket, p.host(), keyName, p.version)
	p.cmd.Env = append(os.Environ(), e.Env...)
	p.cmd.Env = append(p.cmd.Env, "AZURE_TENANT_ID="+e.TenantID, "AZURE_CLIENT_ID="+e.ClientID, "AZURE_CLIENT_SECRET="+e.ClientSecret)
	p.cmd.SysProcAttr = ownGroup()
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the floor: %w", err)
	}
	go func() {
		_ = p.cmd.Wait() // it has nothing to say
		close(p.exited)
	}()
	if err := p.await(ctx, socket, began); err != nil {
		p.stop()
		return nil, fmt.Errorf("starting the floor: %w", err)
	}
	return p, nil
}

// measureStart starts the plugin several times, each time as the first one on
// its node and after the plainest server, so that a busy machine slows both; then
// as often where one ran before and may have left something behind. It leaves the
// last one running.
func (b *bench) measureStart(ctx context.Context, t, floor target) error {
	info, err := os.Stat(t.bin)
	if err != nil {
		return err
	}
	b.f.Binary = float64(info.Size()) / (1 << 20)
	b.say("starting it %d times", 2*b.starts+1)
	var ours, plain starts
	for range b.starts {
		dir, err := os.MkdirTemp(b.dir, "s")
		if err != nil {
			return err
		}
		p, err := startFloor(ctx, b.floor, floor, b.e, dir)
		if err != nil {
			return err
		}
		plain.add(p)
		b.f.FloorRSS, err = p.memory("VmRSS")
		p.stop()
		if err != nil {
			return err
		}
		before, err := b.e.count(t.calls())
		if err != nil {
			return err
		}
		if p, err = start(ctx, t, b.e, dir); err != nil {
			return err
		}
		ours.add(p)
		after, err := b.e.count(t.calls())
		p.stop()
		if err != nil {
			return err
		}
		b.f.StartCalls = after - before
	}
	var again starts
	for i := range b.starts + 1 {
		if b.process, err = start(ctx, t, b.e, b.dir); err != nil {
			return err
		}
		if i > 0 { // the first in this folder found nothing
			again.add(b.process)
		}
		if i < b.starts {
			b.process.stop()
		}
	}
	b.f.SocketAfter, b.f.ReadyAfter = ours.against(plain)
	b.f.Restart = spread(again.ready)
	return nil
}

// starts are how long some starts took.
type starts struct{ socket, ready sample }

func (s *starts) add(p *process) {
	s.socket, s.ready = append(s.socket, p.socketAfter), append(s.ready, p.readyAfter)
}

// against sets the medians beside those of the floor.
func (s starts) against(floor starts) (socket, ready startTime) {
	socket, ready = spread(s.socket), spread(s.ready)
	socket.Floor, ready.Floor = floor.socket.at(0.5), floor.ready.at(0.5)
	return socket, ready
}
