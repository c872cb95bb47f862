package archive

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/tapestore/tapestore/internal/filelock"
)

// ErrInUse reports that another export writes to the same directory or file.
var ErrInUse = errors.New("another export writes there: wait for its end, or name another directory or file")

// lockSuffix ends the names of lock files.
const lockSuffix = ".lock"

// lockTries bounds how often a lock file is opened that its former holder removes. 100: each takes another
// export that ends in the same moment.
const lockTries = 100

// Lock locks the name of an archive that is about to be written, so that of two exports to one name the
// second is refused. [ExportDir] locks its directory; a program that writes an archive into a file locks
// the file's name. The lock is that of the file name.lock (flock), which unlock removes. The lock of a
// process that was killed has ended, and its file does no harm. A file system without locks, and Solaris
// and AIX, have no lock.
//
// Errors: ErrInUse; those of the file system.
func Lock(name string) (unlock func(), err error) {
	path := name + lockSuffix
	for range lockTries {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		locked, err := filelock.Try(f)
		if err == nil && !locked {
			err = ErrInUse
		}
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, errors.Join(fmt.Errorf("lock %q: %w", path, err), f.Close())
		}
		if isAt(f, path) {
			return func() { removeLock(f, path) }, nil
		}
		_ = f.Close() // the former holder has removed it
	}
	return nil, fmt.Errorf("lock %q: %w", path, ErrInUse)
}

// isAt reports whether a path leads to an open file.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(open, there)
}

// removeLock removes a lock file and unlocks it, in this order: once it is unlocked, the next holder may
// have it. Windows removes no file that is open, not that of the next holder either.
func removeLock(f *os.File, path string) {
	if runtime.GOOS != "windows" {
		_ = os.Remove(path) // one that stays does no harm
	}
	_ = f.Close()
	if runtime.GOOS == "windows" {
		_ = os.Remove(path)
	}
}
