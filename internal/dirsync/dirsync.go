// Package dirsync makes changes of a directory durable.
package dirsync

import (
	"errors"
	"os"
	"runtime"
)

// Sync makes the names in a directory durable, for example after a rename. On Windows, where a directory
// cannot be synced, it does nothing.
func Sync(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
