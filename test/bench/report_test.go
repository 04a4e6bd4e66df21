package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// good returns figures that meet every target.
func good(name string) *figures {
	ok := latency{P50: 0.2, P99: 0.5, N: 1000}
	return &figures{
		Name: name, Binary: 19, IdleRSS: 17, LoadRSS: 27, PeakRSS: 30, CallsPerDay: 2880, FollowCallsPerDay: 2904,
		SocketAfter: startTime{Median: 14, Floor: 10}, ReadyAfter: startTime{Median: 60, Floor: 51},
		StatusFar: ok, StatusHanging: ok, StatusRefused: ok, StatusDropped: ok,
		HTTPLoad:     &httpLoad{Status: ok, Grown: 15},
		AddedEncrypt: 0.2, AddedDecrypt: 0.2, RatioFar: 0.97, IdenticalCalls: 1,
		Grid: []gridLine{{Op: "Encrypt", VaultAway: 20, Concurrency: 64, Plugin: ok, DirectClient: &ok}},
	}
}

func TestReport_EveryTargetCanBeMissed(t *testing.T) {
	require.Empty(t, report{Targets: []*figures{good("x")}}.missed())
	slow := latency{P50: 0.2, P99: 1.5, N: 1000}
	for name, spoil := range map[string]func(*figures){
		"per Status":       func(f *figures) { f.CallsPerStatus = 2 },
		"per health probe": func(f *figures) { f.CallsPerProbe = 6 },
		"replica and day":  func(f *figures) { f.CallsPerDay = 3000 },
		"newest version":   func(f *figures) { f.FollowCallsPerDay = 3000 },
		"50 ms away":       func(f *figures) { f.StatusFar = slow },
		"hanging":          func(f *figures) { f.StatusHanging.Failed = 1 },
		"refusing":         func(f *figures) { f.StatusRefused = slow },
		"dropping":         func(f *figures) { f.StatusDropped = slow },
		"Encrypt":          func(f *figures) { f.AddedEncrypt = 0.3 },
		"Decrypt: p50":     func(f *figures) { f.AddedDecrypt = 0.3 },
		"a second":         func(f *figures) { f.RatioFar = 0.95 },
		"new connections":  func(f *figures) { f.NewConnections = 1 },
		"identical":        func(f *figures) { f.IdenticalCalls = 2 },
		"idle (VmRSS)":     func(f *figures) { f.IdleRSS = 18 },
		"after load":       func(f *figures) { f.LoadRSS = 28 },
		"p99 under HTTP":   func(f *figures) { f.HTTPLoad.Status = slow },
		"grown under HTTP": func(f *figures) { f.HTTPLoad.Grown = 16 },
		"kubelet":          func(f *figures) { f.HTTPLoad.KubeletFailed = 1 },
		"binary":           func(f *figures) { f.Binary = 20 },
		"socket accepts":   func(f *figures) { f.SocketAfter.Median = 15; f.SocketAfter.Floor = 13 },
		"first good":       func(f *figures) { f.ReadyAfter.Floor = 49 },
	} {
		t.Run(name, func(t *testing.T) {
			f := good("x")
			spoil(f)
			missed := report{Targets: []*figures{f, good("peer")}}.missed()
			require.Len(t, missed, 1)
			require.Contains(t, missed[0], name)
			require.Empty(t, report{Targets: []*figures{good("x"), f}}.missed(), "a peer has no targets")
		})
	}
}

func TestReport_Write(t *testing.T) {
	dir := t.TempDir()
	bad := good("ours")
	bad.IdleRSS = 99
	plain := good("plain")
	plain.AddedEncrypt, plain.AddedDecrypt = 0.41, 0.52
	r := report{Machine: "2 cores", Targets: []*figures{bad, good("theirs")}, Bare: good("bare"), Plain: plain}
	require.NoError(t, r.write(dir))

	md, err := os.ReadFile(filepath.Join(dir, "bench.md"))
	require.NoError(t, err)
	require.Contains(t, string(md), "| memory idle (VmRSS), MiB | < 18 | 99.0 | 17.0 | miss |")
	require.Contains(t, string(md), "Encrypt +0.41 ms, Decrypt +0.52 ms", "what the libraries cost")
	for table := range strings.SplitSeq(string(md), "\n\n") {
		var cells int
		for line := range strings.Lines(table) {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			if cells == 0 {
				cells = strings.Count(line, "|")
			}
			require.Equal(t, cells, strings.Count(line, "|"), line)
		}
	}

	data, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	require.NoError(t, err)
	var back report
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, r, back)

	var text bytes.Buffer
	r.text(&text)
	require.Contains(t, text.String(), "1 of the figures missed")
}

// A quick run has too few rounds to fail anybody, and too few to praise.
func TestReport_QuickIsNotJudged(t *testing.T) {
	bad := good("ours")
	bad.IdleRSS = 99
	r := report{Quick: true, Targets: []*figures{bad}, Bare: good("bare"), Plain: good("plain")}
	require.Empty(t, r.missed(), "the exit status follows from this")
	var text, md bytes.Buffer
	r.text(&text)
	r.markdown(&md)
	for _, out := range []string{text.String(), md.String()} {
		require.Contains(t, out, "99.0")
		require.Contains(t, out, "not judged")
		for _, verdict := range []string{"PASS", "miss", "All figures hold"} {
			require.NotContains(t, out, verdict)
		}
	}
}
