//go:build unix && !solaris && !aix

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// Try takes the exclusive lock of a file, and does not wait: it returns false while another handle
// has it.
func Try(f *os.File) (locked bool, err error) {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case errors.Is(err, syscall.ENOLCK): // NFS without its lock service
			return false, errors.ErrUnsupported
		default:
			return err == nil, os.NewSyscallError("flock", err)
		}
	}
}

// Release releases the lock that [Try] took. Closing the file releases it too.
func Release(f *os.File) { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
