//go:build !darwin && !dragonfly && !freebsd && !linux && !netbsd && !openbsd

package sqlite

import "os"

// lockFile and unlockFile do nothing: there is no flock. A write looks at the file all the same.
func lockFile(*os.File)   {}
func unlockFile(*os.File) {}
