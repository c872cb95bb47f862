//go:build unix

package sqlite

import "golang.org/x/sys/unix"

// writable returns an error if this process may not read and write a file, or create files in a
// directory.
func writable(path string, directory bool) error {
	if directory {
		return unix.Access(path, unix.W_OK|unix.X_OK)
	}
	return unix.Access(path, unix.R_OK|unix.W_OK)
}
