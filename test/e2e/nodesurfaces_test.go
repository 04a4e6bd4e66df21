package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A lastRun is what the command line has shown last.
type lastRun struct {
	at       time.Time
	document string // as it was shortly before
	sight    sight
}

// rerunAfter is how long a run of the command line stands for those that would show the
// same document: a process each second and node is more than a small machine can take.
const rerunAfter = 5 * time.Second

// seeCommand is what the command line shows.
func seeCommand(ctx context.Context, n *node) sight {
	document := seeDocument(ctx, n).text
	if time.Since(n.command.at) > rerunAfter || document != n.command.document {
		n.command = lastRun{time.Now(), document, runCommand(ctx, n)}
	}
	return n.command.sight
}

// runCommand runs `azure-kms-plugin status` as somebody on the node would. The table
// is for people, so it is only searched for a word that is a reason.
func runCommand(ctx context.Context, n *node) sight {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.plugin, "status", n.plugin.StatusURL)
	cmd.Env = []string{}
	var out, faults bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &faults
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return unseen(err)
	} else if ok && exit.ExitCode() < 0 {
		return unseen(err)
	}
	code := cmd.ProcessState.ExitCode()
	s := sight{ok: code == exitUsable, reason: reasonIn(out.String()), text: fmt.Sprintf("exit %d", code)}
	s.text = strings.TrimSpace(s.text + " " + s.reason + " " + oneLine(faults.String()))
	for _, version := range regexp.MustCompile(`\b[0-9a-f]{32}\b`).FindAllString(out.String(), -1) {
		if !slices.Contains(s.alarms, version) {
			s.alarms = append(s.alarms, version)
		}
	}
	return s
}

// A logLine is a line of a plugin's log, as far as it tells the state of the key.
type logLine struct {
	Msg, Phase, Reason, Severity, Version, Text string
}

// seeLog is the last change of state that was logged, and the alarms of old versions
// that were logged and not called off since.
func seeLog(_ context.Context, n *node) sight {
	lines, err := n.logged()
	if err != nil {
		return unseen(err)
	}
	s := sight{text: "nothing"}
	for _, l := range lines {
		switch {
		case l.Phase != "":
			s.ok, s.reason, s.text = l.Phase == "Usable", l.Reason, strings.TrimSpace(l.Phase+" "+l.Reason)
		case strings.HasPrefix(l.Msg, oldVersion):
			s.alarms = slices.DeleteFunc(s.alarms, func(a string) bool { return strings.HasSuffix(a, l.Version) })
			if l.Severity != "" {
				s.alarms = append(s.alarms, l.Severity+" "+l.Reason+" "+l.Version)
			}
		}
	}
	s.text = strings.Join(append([]string{s.text}, s.alarms...), ", ")
	return s
}

// oldVersion begins the lines about old versions.
const oldVersion = "old key version"

// logged are all lines of the plugin's log, over its restarts.
func (n *node) logged() ([]logLine, error) {
	data, err := os.ReadFile(n.plugin.LogFile())
	if err != nil {
		return nil, err
	}
	var found []logLine
	for text := range bytes.Lines(data) {
		var l logLine
		if json.Unmarshal(text, &l) == nil {
			found = append(found, l)
		}
	}
	return found, nil
}

// stateLines are those that say how the key is.
func (n *node) stateLines() ([]logLine, error) {
	lines, err := n.logged()
	return slices.DeleteFunc(lines, func(l logLine) bool { return l.Phase == "" }), err
}
