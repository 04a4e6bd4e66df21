package vault

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// duration is a time.Duration that JSON writes as "1.5s".
type duration time.Duration

func (d duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

func (d *duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf(`a duration is a string like "1.5s", not %s`, b)
	}
	parsed, err := time.ParseDuration(s)
	*d = duration(parsed)
	return err
}

// plainFault is Fault without methods; wireFault's own fields hide its durations.
type plainFault Fault

type wireFault struct {
	plainFault
	Delay      duration `json:"delay,omitempty"`
	RetryAfter duration `json:"retryAfter,omitempty"`
	SlowBody   duration `json:"slowBody,omitempty"`
}

// MarshalJSON writes durations as text.
func (f Fault) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireFault{plainFault(f), duration(f.Delay), duration(f.RetryAfter), duration(f.SlowBody)})
}

// UnmarshalJSON refuses unknown fields: a misspelled fault would do nothing.
func (f *Fault) UnmarshalJSON(b []byte) error {
	var w wireFault
	if err := strict(b, &w); err != nil {
		return err
	}
	*f = Fault(w.plainFault)
	f.Delay, f.RetryAfter, f.SlowBody = time.Duration(w.Delay), time.Duration(w.RetryAfter), time.Duration(w.SlowBody)
	return nil
}

// strict decodes one JSON value without unknown fields.
func strict(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return fmt.Errorf("there is more than one value")
	}
	return nil
}
