package vault

import (
	"fmt"
	"net"
	"syscall"
)

// setBacklog changes how many connections may wait to be accepted.
func setBacklog(ln *net.TCPListener, n int) error {
	raw, err := ln.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = syscall.Listen(int(fd), n) }); err != nil {
		return err
	}
	return failed
}

// A placeholder is bound to a port without listening on it, so that
// connections are refused and nobody else gets the port.
type placeholder struct{ fd int }

func holdPort(addr *net.TCPAddr) (*placeholder, error) {
	ip := addr.IP.To4()
	if ip == nil {
		return nil, fmt.Errorf("%s is not an IPv4 address", addr)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	// Both this and Go's listener allow reuse, so that the listener can come
	// back before the port is let go.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: addr.Port, Addr: [4]byte(ip)}); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return &placeholder{fd}, nil
}

func (p *placeholder) close() { syscall.Close(p.fd) }

// A blackHole is an address whose kernel drops every SYN.
type blackHole struct {
	ln     *net.TCPListener
	filler net.Conn
}

func openBlackHole() (*blackHole, error) {
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	if err := setBacklog(ln, 0); err != nil {
		ln.Close()
		return nil, err
	}
	// One connection that nobody accepts fills a queue of length 0.
	filler, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		ln.Close()
		return nil, err
	}
	return &blackHole{ln, filler}, nil
}

func (b *blackHole) addr() string { return b.ln.Addr().String() }

func (b *blackHole) close() {
	b.filler.Close()
	b.ln.Close()
}
