//go:build !unix

package sqlite

import (
	"fmt"
	"os"
)

// writable returns an error if a file is marked as read-only. The rights of a directory cannot be
// asked for without writing.
func writable(path string, directory bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !directory && info.Mode().Perm()&0o200 == 0 {
		return fmt.Errorf("%s: %w", path, os.ErrPermission)
	}
	return nil
}
