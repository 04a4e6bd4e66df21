package e2e_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Why a key cannot be used, in the words that every surface shows. They are written
// down here once more, as is what the tests read of the status document: a program
// that reads them knows no more than this either.
const (
	keyDisabled            = "KeyDisabled"
	keyDeleted             = "KeyDeleted"
	keyNotFound            = "KeyNotFound"
	accessDenied           = "AccessDenied"
	networkDenied          = "NetworkDenied"
	credentialsRefused     = "CredentialsRefused"
	vaultNotFound          = "VaultNotFound"
	unreachable            = "Unreachable"
	throttled              = "Throttled"
	credentialsUnavailable = "CredentialsUnavailable"
	keyExpired             = "KeyExpired"
)

var reasons = []string{
	keyDisabled, keyDeleted, keyNotFound, accessDenied, networkDenied, credentialsRefused, vaultNotFound,
	unreachable, throttled, credentialsUnavailable, keyExpired,
	"OperationNotPermitted", "Unknown", "KeyNotYetValid",
}

// Exit statuses of `azure-kms-plugin status`.
const (
	exitUsable   = 0
	exitDegraded = 1
	exitLost     = 2
	exitUsage    = 64
)

// A document is what the tests read of a status document.
type document struct {
	APIVersion        string    `json:"apiVersion"`
	Kind              string    `json:"kind"`
	ObservedTime      time.Time `json:"observedTime"`
	StaleAfterSeconds int       `json:"staleAfterSeconds"`
	Answer            struct {
		OK bool `json:"ok"`
	} `json:"answer"`
	Phase   string `json:"phase"`
	Failure *struct {
		Reason             string     `json:"reason"`
		Cause              string     `json:"cause"`
		Text               string     `json:"text"`
		ScheduledPurgeTime *time.Time `json:"scheduledPurgeTime"`
	} `json:"failure"`
	Conditions []struct {
		Type, Status, Reason string
	} `json:"conditions"`
	Alarms []struct {
		Severity, Reason, Version, Text string
	} `json:"alarms"`
}

func decodeDocument(data []byte) (*document, error) {
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	if d.APIVersion != "azure-kms-plugin/v1" || d.Kind != "KMSPluginStatus" {
		return nil, fmt.Errorf("a %s of %s", d.Kind, d.APIVersion)
	}
	return &d, nil
}

// condition is the status and the reason of a condition.
func (d *document) condition(kind string) (status, reason string) {
	for _, c := range d.Conditions {
		if c.Type == kind {
			return c.Status, c.Reason
		}
	}
	return "", ""
}

// sight reads a document as an operator would. One that is stale shows nothing.
func (d *document) sight() sight {
	if age := time.Since(d.ObservedTime); age > time.Duration(d.StaleAfterSeconds)*time.Second {
		return sight{text: "stale"}
	}
	degraded, _ := d.condition("Degraded")
	s := sight{ok: d.Phase == "Usable" && degraded == "False" && d.Answer.OK, phase: d.Phase, text: d.Phase}
	if d.Failure != nil {
		s.text = strings.TrimSuffix(s.text+" "+d.Failure.Reason+"/"+d.Failure.Cause, "/")
		if degraded == "True" {
			s.reason = d.Failure.Reason
		}
	}
	for _, a := range d.Alarms {
		alarm := strings.TrimSpace(a.Severity + " " + a.Reason + " " + a.Version)
		s.alarms, s.text = append(s.alarms, alarm), s.text+", "+alarm
	}
	return s
}

// reasonIn is the first word of a text that is a reason.
func reasonIn(text string) string {
	for _, word := range regexp.MustCompile(`[A-Za-z]+`).FindAllString(text, -1) {
		if slices.Contains(reasons, word) {
			return word
		}
	}
	return ""
}
