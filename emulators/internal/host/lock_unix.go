//go:build unix && !solaris && !aix

package host

import (
	"errors"
	"os"
	"syscall"
)

// lockFile locks a file until it is closed; it does not wait.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return os.NewSyscallError("flock", err)
}
