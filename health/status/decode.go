package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxDocument bounds what is read: a document has some kilobytes.
const maxDocument = 1 << 20

// Decode reads a document. What it does not know it ignores; what cannot be a
// document is an error that says why.
func Decode(r io.Reader) (*Document, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxDocument:
		return nil, fmt.Errorf("more than %d bytes", maxDocument)
	case len(data) == 0:
		return nil, errors.New("empty")
	}
	var d Document
	if err := json.Unmarshal(data, &d); err != nil {
		// The decoder's text may quote what was read.
		return nil, errors.New("not the JSON of a status document")
	}
	switch {
	case d.Kind != Kind:
		return nil, fmt.Errorf("not a status document: its kind is %.40q, want %s", d.Kind, Kind)
	case d.APIVersion != APIVersion:
		return nil, fmt.Errorf("a status document of another version: %.40q, want %s", d.APIVersion, APIVersion)
	case d.ObservedTime.IsZero():
		return nil, errors.New("a status document without observedTime")
	case d.Phase == "":
		return nil, errors.New("a status document without phase")
	}
	return &d, nil
}

// notReported is the reason of a condition that a document does not have.
const notReported = "NotReported"

// Condition returns the condition of a type; one that is Unknown if there is none.
func (d *Document) Condition(t ConditionType) Condition {
	for _, c := range d.Conditions {
		if c.Type == t {
			return c
		}
	}
	return Condition{Type: t, Status: Unknown, Reason: notReported}
}
