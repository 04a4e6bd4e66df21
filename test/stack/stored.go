package stack

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Prefix begins every value that a KMS v2 provider has encrypted, followed by
// the provider's name and a colon.
const Prefix = "k8s:enc:kms:v2:"

// A Stored is an encrypted value as it lies in etcd, taken apart without
// decrypting it.
type Stored struct {
	Provider string
	Data     []byte // the object, encrypted with a key derived from the seed
	KeyID    string
	// Seed is the wrapped source of the data key, as the plugin returned it.
	Seed        []byte
	Annotations map[string][]byte
	// SeedType is 1 when a data key is derived from the seed for each object.
	SeedType uint64
}

// ParseStored takes a value of etcd apart. The header is written by hand here
// so that it also checks what kube-apiserver's own type would forgive.
func ParseStored(value []byte) (Stored, error) {
	rest, ok := bytes.CutPrefix(value, []byte(Prefix))
	if !ok {
		return Stored{}, fmt.Errorf("the value does not begin with %s", Prefix)
	}
	name, rest, ok := bytes.Cut(rest, []byte(":"))
	if !ok {
		return Stored{}, errors.New("the value has no provider name")
	}
	s := Stored{Provider: string(name), Annotations: map[string][]byte{}}
	err := fields(rest, func(n protowire.Number, number uint64, content []byte) error {
		switch n {
		case 1:
			s.Data = content
		case 2:
			s.KeyID = string(content)
		case 3:
			s.Seed = content
		case 4:
			var key string
			var val []byte
			if err := fields(content, func(n protowire.Number, _ uint64, content []byte) error {
				if n == 1 {
					key = string(content)
				} else {
					val = content
				}
				return nil
			}); err != nil {
				return fmt.Errorf("reading an annotation: %w", err)
			}
			s.Annotations[key] = val
		case 5:
			s.SeedType = number
		default:
			return fmt.Errorf("field %d is unknown", n)
		}
		return nil
	})
	if err != nil {
		return Stored{}, fmt.Errorf("reading the header of the value: %w", err)
	}
	return s, nil
}

// fields calls visit for each field of a protobuf message that has only
// numbers and byte strings.
func fields(b []byte, visit func(n protowire.Number, number uint64, content []byte) error) error {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		var number uint64
		var content []byte
		switch kind {
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			content, size = protowire.ConsumeBytes(b)
		default:
			return fmt.Errorf("field %d has the unexpected wire type %d", n, kind)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if err := visit(n, number, content); err != nil {
			return err
		}
	}
	return nil
}
