package archive

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockFile locks a file until it is closed. It does not wait.
func lockFile(f *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrInUse
	}
	return os.NewSyscallError("LockFileEx", err)
}
