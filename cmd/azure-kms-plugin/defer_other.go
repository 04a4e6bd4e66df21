//go:build !linux

package main

import "syscall"

// deferAccept is for Linux.
func deferAccept(string, string, syscall.RawConn) error { return nil }
