//go:build unix

package sqlite

import "golang.org/x/sys/unix"

// writableDirectory returns an error if this process may not create files in a directory.
func writableDirectory(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }
