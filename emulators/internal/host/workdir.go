package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/tapestore/tapestore/internal/filelock"
)

// lockName is the file in an engine's directory that the owning process keeps locked. The kernel
// unlocks it when the owner ends, in whatever way.
const lockName = "owner.lock"

// temporaryName is the file that marks a directory as one of NewWorkDir's. Without it no directory
// with content is swept, because the user may have named it.
const temporaryName = "temporary"

// sweepTries bounds how often an owner begins again because of processes that look for abandoned directories.
const sweepTries = 100

// WorkDir is the directory of a private engine.
type WorkDir struct {
	Path      string
	Lock      *os.File
	Temporary bool // removed by Close
}

// NewWorkDir creates a temporary directory in root whose name begins with prefix. Other users may
// pass through it, because the engine may run as one.
func NewWorkDir(root, prefix string) (*WorkDir, error) {
	for range sweepTries {
		path, err := os.MkdirTemp(root, prefix)
		if err != nil {
			return nil, err
		}
		lock, err := lockDir(path)
		if errors.Is(err, errLocked) || errors.Is(err, os.ErrNotExist) {
			continue // another process took it for abandoned and removes it
		}
		if err != nil {
			return nil, errors.Join(err, removeAll(path))
		}
		// From here on no other process removes it.
		if err := errors.Join(os.WriteFile(filepath.Join(path, temporaryName), nil, 0o600), os.Chmod(path, 0o711)); err != nil {
			return nil, errors.Join(err, removeAll(path), lock.Close())
		}
		return &WorkDir{Path: path, Lock: lock, Temporary: true}, nil
	}
	return nil, fmt.Errorf("no directory %s* of ours in %s stays", prefix, root)
}

// OpenWorkDir opens a directory that is to be kept, and creates it if it is missing.
func OpenWorkDir(path string) (*WorkDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o711); err != nil {
		return nil, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil { // as /proc and ps show it
		return nil, err
	}
	lock, err := lockDir(path)
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("%s is in use by another process", path)
	}
	if err != nil {
		return nil, err
	}
	// A temporary directory that its owner left is kept from now on.
	if err := os.Remove(filepath.Join(path, temporaryName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(err, lock.Close())
	}
	return &WorkDir{Path: path, Lock: lock}, nil
}

// Close unlocks the directory, and removes it if it is temporary.
func (d *WorkDir) Close() error {
	var err error
	if d.Temporary {
		err = removeAll(d.Path)
	}
	return errors.Join(err, d.Lock.Close())
}

// removeAll removes a temporary directory, its mark last, so that a later sweep removes what an
// interrupted removal left. Another process that looks for abandoned directories may create a lock file
// in it meanwhile, so that it is not empty in the end.
func removeAll(path string) (err error) {
	for range sweepTries {
		entries, _ := os.ReadDir(path)
		err = nil
		for _, e := range entries {
			if e.Name() != temporaryName {
				err = errors.Join(err, os.RemoveAll(filepath.Join(path, e.Name())))
			}
		}
		if err == nil {
			err = os.RemoveAll(path)
		}
		if err == nil {
			break
		}
	}
	return err
}

// isTemporary reports whether NewWorkDir made a directory. An empty one, but for its lock file, may
// be one whose owner died before it wrote the mark.
func isTemporary(path string) bool {
	if _, err := os.Lstat(filepath.Join(path, temporaryName)); err == nil {
		return true
	}
	entries, err := os.ReadDir(path)
	return err == nil && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() != lockName })
}

// errLocked reports that the process that owns a directory is alive.
var errLocked = errors.New("locked by its owner")

// lockDir locks a directory by its lock file. It fails with errLocked if another owner has the
// lock, and with os.ErrNotExist if the directory was removed meanwhile.
func lockDir(path string) (*os.File, error) {
	name := filepath.Join(path, lockName)
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	locked, err := filelock.Try(lock)
	if err == nil && !locked {
		err = errLocked
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	// Between opening and locking, another process may have removed the file: then the
	// locked file is no longer the one that others see.
	ours, err := lock.Stat()
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	theirs, err := os.Stat(name)
	if err == nil && !os.SameFile(ours, theirs) {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// SweepWorkDirs removes the directories that NewWorkDir made in root with a prefix and whose owner
// has died; end kills what still runs in one. It touches only directories of our own user, because
// any user may use such a name, and none that OpenWorkDir has opened, unless it is empty. What cannot
// be removed is left for the next time; nothing depends on it.
func SweepWorkDirs(root, prefix string, end func(dir string) error) {
	paths, _ := filepath.Glob(filepath.Join(root, prefix+"*"))
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || !isOurs(info) || !isTemporary(path) {
			continue
		}
		lock, err := lockDir(path)
		if err != nil {
			continue
		}
		if !isTemporary(path) { // opened by its name meanwhile
			_ = lock.Close()
			continue
		}
		// The directory is renamed first. Otherwise the process that has just made it could lock a new file
		// in it, once the locked one is deleted, and lose the directory all the same.
		if swept := path + ".swept"; end(path) == nil && os.Rename(path, swept) == nil {
			_ = removeAll(swept)
		}
		_ = lock.Close()
	}
}
