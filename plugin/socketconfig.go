package plugin

import (
	"fmt"
	"io/fs"
	"os/user"
	"strconv"
)

// A SocketConfig says where the socket is and who may connect.
type SocketConfig struct {
	// Address is what ParseAddress reads. Default unix:///opt/azurekms.socket.
	Address string
	// Mode is the mode of a socket file. Whoever can write to the socket can
	// have everything decrypted, so others never get access. Default 0600,
	// and 0660 with a Group.
	Mode fs.FileMode
	// Group owns a socket file, by name or number. Default: the process's own.
	Group string
}

// resolve reads c and reports the first fault.
func (c SocketConfig) resolve() (addr Address, mode fs.FileMode, gid int, err error) {
	if c.Address == "" {
		c.Address = defaultAddress
	}
	if addr, err = ParseAddress(c.Address); err != nil {
		return addr, 0, -1, fmt.Errorf("listen address: %w", err)
	}
	if gid, err = ParseGroup(c.Group); err != nil {
		return addr, 0, -1, fmt.Errorf("socket group: %w", err)
	}
	mode = c.Mode
	if mode == 0 {
		mode = 0o600
		if c.Group != "" {
			mode = 0o660
		}
	}
	if err := CheckMode(mode); err != nil {
		return addr, 0, -1, fmt.Errorf("socket mode: %w", err)
	}
	return addr, mode, gid, nil
}

// CheckMode reports what is wrong with the mode of a socket.
func CheckMode(mode fs.FileMode) error {
	switch {
	case mode&0o007 != 0:
		return fmt.Errorf("%04o lets every user of the node decrypt everything: write 0600, or 0660 with a group", mode)
	case mode&^0o770 != 0:
		return fmt.Errorf("%04o holds more than permissions of user and group: write 0600 or 0660", mode)
	case mode&0o600 != 0o600:
		return fmt.Errorf("%04o keeps this process from its own socket: write 0600 or 0660", mode)
	}
	return nil
}

// ParseGroup looks up a group by name or number; "" is none, -1.
func ParseGroup(s string) (int, error) {
	if s == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(s, 10, 32); err == nil && n < 1<<32-1 {
		return int(n), nil
	}
	g, err := user.LookupGroup(s)
	if err != nil {
		return -1, fmt.Errorf("%q is no group on this machine (an image may have no group file): write its number", s)
	}
	return strconv.Atoi(g.Gid)
}
