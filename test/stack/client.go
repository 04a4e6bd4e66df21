package stack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// A Client calls a kube-apiserver. It never repeats a request, so that a
// failed one is seen.
type Client struct {
	url   string
	token string
	http  *http.Client
}

// An Object is a secret or a configmap, as far as the tests care.
type Object struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   Metadata          `json:"metadata"`
	Data       map[string][]byte `json:"-"` // of a secret
	Text       map[string]string `json:"-"` // of a configmap
}

// Metadata names an object.
type Metadata struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// An APIError is an answer of kube-apiserver other than success.
type APIError struct {
	Method, Path string
	Status       int
	Message      string
}

func (e *APIError) Error() string {
	return fmt.Sprintf("%s %s: %d: %s", e.Method, e.Path, e.Status, e.Message)
}

// Secret and ConfigMap make an object in the default namespace.
func Secret(name string, data map[string][]byte) Object {
	return Object{APIVersion: "v1", Kind: "Secret", Metadata: Metadata{Name: name, Namespace: "default"}, Data: data}
}

// ConfigMap makes a configmap in the default namespace.
func ConfigMap(name string, text map[string]string) Object {
	return Object{APIVersion: "v1", Kind: "ConfigMap", Metadata: Metadata{Name: name, Namespace: "default"}, Text: text}
}

// Create creates o.
func (c *Client) Create(ctx context.Context, o Object) error {
	return c.do(ctx, http.MethodPost, path(o.Kind, o.Metadata.Namespace, ""), o, nil)
}

// Update replaces o, whatever version of it is there.
func (c *Client) Update(ctx context.Context, o Object) error {
	return c.do(ctx, http.MethodPut, path(o.Kind, o.Metadata.Namespace, o.Metadata.Name), o, nil)
}

// Get reads one object of the default namespace from etcd, not from
// kube-apiserver's watch cache.
func (c *Client) Get(ctx context.Context, kind, name string) (Object, error) {
	var o Object
	err := c.do(ctx, http.MethodGet, path(kind, "default", name), nil, &o)
	return o, err
}

// List reads all objects of one kind in the default namespace, from
// kube-apiserver's watch cache if it is complete.
func (c *Client) List(ctx context.Context, kind string) ([]Object, error) {
	var list struct{ Items []object }
	if err := c.do(ctx, http.MethodGet, path(kind, "default", ""), nil, &list); err != nil {
		return nil, err
	}
	objects := make([]Object, len(list.Items))
	for i, w := range list.Items {
		w.Kind = kind // which the items of a list do not repeat
		if err := objects[i].set(w); err != nil {
			return nil, fmt.Errorf("listing %ss: reading the answer: %w", kind, err)
		}
	}
	return objects, nil
}

// Watch opens a watch of all objects of one kind in the default namespace, for a second.
// It reports why that cannot be opened.
func (c *Client) Watch(ctx context.Context, kind string) error {
	return c.do(ctx, http.MethodGet, path(kind, "default", "")+"?watch=1&timeoutSeconds=1", nil, nil)
}

// Ready reports why kube-apiserver is not ready, nil when it is.
func (c *Client) Ready(ctx context.Context) error { return c.page(ctx, "/readyz") }

// Live reports why kube-apiserver is not alive, nil when it is.
func (c *Client) Live(ctx context.Context) error { return c.page(ctx, "/livez") }

// KMSReady reports what kube-apiserver thinks of its KMS providers.
func (c *Client) KMSReady(ctx context.Context) error { return c.page(ctx, "/readyz/kms-providers") }

func (c *Client) page(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return c.do(ctx, http.MethodGet, path, nil, nil)
}

func path(kind, namespace, name string) string {
	p := "/api/v1/namespaces/" + namespace + "/secrets"
	if kind == "ConfigMap" {
		p = "/api/v1/namespaces/" + namespace + "/configmaps"
	}
	if name != "" {
		p += "/" + name
	}
	return p
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 {
		message := string(text)
		var status struct{ Message string }
		if json.Unmarshal(text, &status) == nil && status.Message != "" {
			message = status.Message
		}
		return &APIError{Method: method, Path: path, Status: resp.StatusCode, Message: message}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s %s: reading the answer: %w", method, path, err)
	}
	return nil
}

// object has the fields of an Object for the wire, where the type of data
// depends on the kind.
type object struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   Metadata        `json:"metadata"`
	Data       json.RawMessage `json:"data,omitempty"`
}

// MarshalJSON writes o as the API has it.
func (o Object) MarshalJSON() ([]byte, error) {
	var data any = o.Data
	if o.Kind == "ConfigMap" {
		data = o.Text
	}
	text, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	return json.Marshal(object{o.APIVersion, o.Kind, o.Metadata, text})
}

// UnmarshalJSON reads o as the API has it.
func (o *Object) UnmarshalJSON(text []byte) error {
	var w object
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	return o.set(w)
}

func (o *Object) set(w object) error {
	*o = Object{APIVersion: w.APIVersion, Kind: w.Kind, Metadata: w.Metadata}
	if len(w.Data) == 0 {
		return nil
	}
	if o.Kind == "ConfigMap" {
		return json.Unmarshal(w.Data, &o.Text)
	}
	return json.Unmarshal(w.Data, &o.Data)
}
