package image

import (
	"bytes"
	"debug/elf"
	"encoding/pem"
	"fmt"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Bundle is where Go, and nearly everything else, looks for CA certificates.
const Bundle = "/etc/ssl/certs/ca-certificates.crt"

// baseFiles are the files beside the program.
func baseFiles() []file {
	return []file{
		{name: "/etc/group", mode: 0o644, data: []byte("root:x:0:\nnonroot:x:65532:\n")},
		{name: "/etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/:/nologin\nnonroot:x:65532:65532:nonroot:/:/nologin\n")},
		{name: Bundle, mode: 0o644, data: roots()},
	}
}

// roots is Mozilla's list as PEM. Roots that are trusted under a further
// condition (certificates issued before a date, say) are left out: a PEM file
// cannot state it, and trusting them without it would be wider than Mozilla is.
func roots() []byte {
	var b bytes.Buffer
	for r := range bundle.Roots() {
		if r.Constraint != nil {
			continue
		}
		// Encode fails only if the writer or a header does.
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate})
	}
	return b.Bytes()
}

// machines lists the architectures that images are made for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkBinary refuses a program that could not start in the image: one for
// another machine, or one that needs a dynamic loader.
func checkBinary(arch string, program []byte) error {
	want, ok := machines[arch]
	if !ok {
		return fmt.Errorf("no images are made for %s", arch)
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("reading the binary: %w", err)
	}
	if f.Machine != want {
		return fmt.Errorf("the binary is for %s", f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("the binary is not static: build it with CGO_ENABLED=0")
		}
	}
	return nil
}
