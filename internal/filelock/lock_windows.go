package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockedByte is what [Try] locks: a byte beyond the content, because Windows keeps others from reading
// what is locked.
var lockedByte = windows.Overlapped{OffsetHigh: 1 << 30}

// Try takes the exclusive lock of a file, and does not wait: it returns false while another handle
// has it.
func Try(f *os.File) (locked bool, err error) {
	at := lockedByte
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, os.NewSyscallError("LockFileEx", err)
}

// Release releases the lock that [Try] took. Closing the file releases it too.
func Release(f *os.File) {
	at := lockedByte
	_ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &at)
}
