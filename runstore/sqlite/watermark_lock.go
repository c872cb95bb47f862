//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package sqlite

import (
	"errors"
	"os"
	"syscall"
)

// lockFile waits for the exclusive lock of a file (flock), which excludes other processes and other
// handles of this process. On a file system without such locks it does nothing.
func lockFile(f *os.File) {
	for errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_EX), syscall.EINTR) {
	}
}

// unlockFile releases the lock of lockFile. Closing the file releases it too.
func unlockFile(f *os.File) { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
