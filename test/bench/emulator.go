package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"azure-kms-plugin/test/vault"
)

// emulatorArg makes this program the emulator. It has to be another process:
// in ours it would share a scheduler and a heap with the direct client only.
const emulatorArg = "-serve-emulator"

// keyName is the key that every vault of the bench has.
const keyName = "bench"

// A command goes to the emulator as one line of JSON; one answer comes back.
type command struct {
	Do    string       `json:"do"` // key, fault, clear, count, requests, connections
	Vault string       `json:"vault,omitempty"`
	Fault *vault.Fault `json:"fault,omitempty"`
	Match *vault.Match `json:"match,omitempty"`
}

type answer struct {
	Error    string          `json:"error,omitempty"`
	Count    int             `json:"count,omitempty"`
	Version  string          `json:"version,omitempty"`
	Requests []vault.Request `json:"requests,omitempty"`
}

// access is what a client needs to reach the emulator; it is the first line
// that the emulator prints.
type access struct {
	Env                              []string
	CAFile, ProxyURL, AzureJSON      string
	TenantID, ClientID, ClientSecret string
}

// serveEmulator runs the emulator until in ends, so that it cannot outlive
// the process that holds the other end.
func serveEmulator(in io.Reader, out io.Writer) error {
	srv, err := vault.Start(vault.Config{KeepRequests: 100_000})
	if err != nil {
		return err
	}
	defer srv.Close()
	dir, err := os.MkdirTemp("", "bench-emulator-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	azureJSON, err := srv.AzureJSON(dir)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	err = enc.Encode(access{
		Env: srv.Env(), CAFile: srv.CAFile(), ProxyURL: srv.ProxyURL(), AzureJSON: azureJSON,
		TenantID: srv.TenantID, ClientID: srv.ClientID, ClientSecret: srv.ClientSecret,
	})
	if err != nil {
		return err
	}
	for dec := json.NewDecoder(in); ; {
		var c command
		if err := dec.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := enc.Encode(obey(srv, c)); err != nil {
			return err
		}
	}
}

func obey(srv *vault.Server, c command) answer {
	var a answer
	var err error
	switch c.Do {
	case "key":
		a.Version, err = srv.Vault(c.Vault).CreateKey(keyName, vault.KeyOptions{Bits: 2048})
	case "fault":
		_, err = srv.TryFault(*c.Fault)
	case "clear":
		srv.ClearFaults()
	case "count":
		a.Count = srv.Count(*c.Match)
	case "requests":
		a.Requests = srv.Requests()
	case "connections":
		a.Count = srv.Connections()
	default:
		err = fmt.Errorf("%q is no command", c.Do)
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// An emulator is the other end: the emulator as its user sees it. It is not
// safe for concurrent use.
type emulator struct {
	access
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

func startEmulator() (*emulator, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	e := &emulator{cmd: exec.Command(self, emulatorArg)}
	e.cmd.Stderr = os.Stderr
	// Ctrl-C is for us alone: the emulator is needed until the plugins have stopped.
	e.cmd.SysProcAttr = ownGroup()
	if e.in, err = e.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := e.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the emulator: %w", err)
	}
	e.enc, e.dec = json.NewEncoder(e.in), json.NewDecoder(bufio.NewReader(stdout))
	if err := e.dec.Decode(&e.access); err != nil {
		e.stop()
		return nil, fmt.Errorf("starting the emulator: %w", err)
	}
	return e, nil
}

func (e *emulator) stop() {
	e.in.Close()
	// Its exit status says nothing that its stderr has not.
	_ = e.cmd.Wait()
}

func (e *emulator) do(c command) (answer, error) {
	var a answer
	if err := e.enc.Encode(c); err != nil {
		return a, fmt.Errorf("asking the emulator: %w", err)
	}
	if err := e.dec.Decode(&a); err != nil {
		return a, fmt.Errorf("asking the emulator: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("asking the emulator: %s: %s", c.Do, a.Error)
	}
	return a, nil
}

func (e *emulator) createKey(v string) (version string, err error) {
	a, err := e.do(command{Do: "key", Vault: v})
	return a.Version, err
}

// only removes all faults and adds these.
func (e *emulator) only(faults ...vault.Fault) error {
	_, err := e.do(command{Do: "clear"})
	for _, f := range faults {
		if err != nil {
			return err
		}
		_, err = e.do(command{Do: "fault", Fault: &f})
	}
	return err
}

func (e *emulator) count(m vault.Match) (int, error) {
	a, err := e.do(command{Do: "count", Match: &m})
	return a.Count, err
}

func (e *emulator) requests() ([]vault.Request, error) {
	a, err := e.do(command{Do: "requests"})
	return a.Requests, err
}

func (e *emulator) connections() (int, error) {
	a, err := e.do(command{Do: "connections"})
	return a.Count, err
}
