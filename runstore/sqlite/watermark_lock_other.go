//go:build !darwin && !dragonfly && !freebsd && !linux && !netbsd && !openbsd

package sqlite

import "os"

// lockFile and unlockFile do nothing, because the system has no flock. A write still reads the file
// before it replaces its content.
func lockFile(*os.File)   {}
func unlockFile(*os.File) {}
