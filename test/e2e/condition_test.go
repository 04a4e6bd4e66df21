package e2e_test

import (
	"fmt"
	"strings"
	"time"
)

// A condition says what a sample lacks; nothing if it holds.
type condition func(sample) (lacks []string)

// well holds when nothing is wrong anywhere.
func well(s sample) (lacks []string) {
	if s.ready != "ok" {
		lacks = append(lacks, "readyz: "+s.ready)
	}
	if s.write != "ok" {
		lacks = append(lacks, "write: "+s.write)
	}
	for _, f := range surfaces {
		if seen := s.plugin[f.name]; !seen.ok {
			lacks = append(lacks, f.name+": "+seen.text)
		}
	}
	return lacks
}

// shows holds when every surface of the plugin names the reason, but for Status while
// the failure is borne.
func shows(reason string, borne bool) condition {
	return func(s sample) (lacks []string) {
		for _, f := range surfaces {
			seen := s.plugin[f.name]
			if f.name == "Status" && borne {
				if !seen.ok {
					lacks = append(lacks, "Status: "+seen.text)
				}
				continue
			}
			if seen.ok || seen.reason != reason {
				lacks = append(lacks, f.name+": "+seen.text)
			}
		}
		return lacks
	}
}

// named holds when every surface names the reason, whether it is borne or obeyed.
func named(reason string) condition {
	return func(s sample) []string {
		return shows(reason, s.plugin["Status"].ok)(s)
	}
}

// exits holds when the command ends with a status.
func exits(code int) condition {
	return func(s sample) (lacks []string) {
		if text := s.plugin["command"].text; !strings.HasPrefix(text+" ", fmt.Sprintf("exit %d ", code)) {
			lacks = append(lacks, "command: "+text)
		}
		return lacks
	}
}

// refuses holds when kube-apiserver takes no new secret and says why.
func refuses(reason string) condition {
	return func(s sample) (lacks []string) {
		if s.write == "ok" {
			lacks = append(lacks, "write: ok")
		}
		if !strings.Contains(s.kms, reason+":") {
			lacks = append(lacks, "kms-providers: "+s.kms)
		}
		return lacks
	}
}

func all(conditions ...condition) condition {
	return func(s sample) (lacks []string) {
		for _, c := range conditions {
			lacks = append(lacks, c(s)...)
		}
		return lacks
	}
}

// quiet holds when nobody who uses kube-apiserver notices anything.
func quiet(s sample) (lacks []string) {
	if s.red() || s.write != "ok" || s.read != "ok" {
		lacks = append(lacks, fmt.Sprintf("readyz %s, write %s, read %s", s.ready, s.write, s.read))
	}
	return lacks
}

// untilAt holds for every sample after a moment, and before it if a condition does.
func untilAt(at time.Time, holds condition) condition {
	return func(s sample) []string {
		if s.at.After(at) {
			return nil
		}
		return holds(s)
	}
}

// never holds while a surface does not name a reason; "" stands for all of them.
func never(name, reason string) condition {
	return func(s sample) (lacks []string) {
		for _, f := range surfaces {
			if seen := s.plugin[f.name]; seen.reason == reason && (name == "" || name == f.name) {
				lacks = append(lacks, f.name+": "+seen.text)
			}
		}
		return lacks
	}
}

// red holds when kube-apiserver is not ready because of its plugin.
func red(s sample) (lacks []string) {
	if !s.red() {
		lacks = append(lacks, "readyz: "+s.ready)
	}
	return lacks
}

// cutOff holds when the plugin says that it is this node alone.
func cutOff(s sample) (lacks []string) {
	if text := s.plugin["/status"].text; s.plugin["/status"].phase != "CutOff" {
		lacks = append(lacks, "/status: "+text)
	}
	return lacks
}

// alarmed holds when an alarm about a version is everywhere but in Status, which says ok.
func alarmed(reason, version string) condition {
	return func(s sample) (lacks []string) {
		for _, f := range surfaces {
			seen := s.plugin[f.name]
			switch {
			case f.name == "Status" && seen.ok,
				f.name == "metrics" && seen.reason == reason,
				strings.Contains(strings.Join(seen.alarms, ","), version):
				continue
			}
			lacks = append(lacks, f.name+": "+seen.text)
		}
		return append(lacks, exits(exitDegraded)(s)...)
	}
}
