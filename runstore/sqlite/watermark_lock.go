//go:build unix

package sqlite

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes the exclusive lock of a file (flock), which excludes other processes and other
// handles of this process. It returns false if one of them has it.
func lockFile(f *os.File) (locked bool, err error) {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		default:
			return err == nil, err
		}
	}
}

// unlockFile releases the lock of lockFile. Closing the file releases it too.
func unlockFile(f *os.File) { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
