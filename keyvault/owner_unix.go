//go:build unix

package keyvault

import (
	"fmt"
	"os"
	"syscall"
)

// ownerOf says who owns a file, as part of a sentence.
func ownerOf(info os.FileInfo) string {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf(" and it belongs to uid %d, gid %d", st.Uid, st.Gid)
	}
	return ""
}
