package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockedByte is what lockFile locks: a byte beyond the content, because Windows keeps others from
// reading what is locked.
var lockedByte = windows.Overlapped{OffsetHigh: 1 << 30}

// lockFile takes an exclusive lock of a file, which excludes other processes and other handles of
// this process. It returns false if one of them has it.
func lockFile(f *os.File) (locked bool, err error) {
	at := lockedByte
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, err
}

// unlockFile releases the lock of lockFile. Closing the file releases it too.
func unlockFile(f *os.File) {
	at := lockedByte
	_ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &at)
}
