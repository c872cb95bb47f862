//go:build unix && !solaris && !aix

package archive

import (
	"errors"
	"os"
	"syscall"
)

// lockFile locks a file until it is closed (flock). It does not wait.
func lockFile(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrInUse
		case errors.Is(err, syscall.ENOLCK): // NFS without a service of locks
			return errors.ErrUnsupported
		case !errors.Is(err, syscall.EINTR):
			return os.NewSyscallError("flock", err)
		}
	}
}
