//go:build !linux

package keyvault

import "syscall"

func setSocketOptions(string, string, syscall.RawConn) error { return nil }
