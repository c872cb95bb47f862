package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestSweep(t *testing.T) {
	t.Parallel()
	const prefix = "emulators-sweep-"
	root := t.TempDir()
	alive, err := NewWorkDir(root, prefix)
	if err != nil {
		t.Fatal(err)
	}
	stale, err := NewWorkDir(root, prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(stale.Path, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	_ = stale.Lock.Close() // what the owner's death does
	stubborn, err := NewWorkDir(root, prefix)
	if err != nil {
		t.Fatal(err)
	}
	_ = stubborn.Lock.Close()
	if err := os.Mkdir(filepath.Join(root, "another"), 0o700); err != nil {
		t.Fatal(err)
	}
	SweepWorkDirs(root, prefix, func(dir string) error {
		if dir == stubborn.Path {
			return errors.New("something still runs here")
		}
		return nil
	})
	var left []string
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	for _, name := range []string{filepath.Base(alive.Path), filepath.Base(stubborn.Path), "another"} {
		if !strings.Contains(strings.Join(left, " "), name) {
			t.Errorf("%s was swept", name)
		}
	}
	if len(left) != 3 {
		t.Errorf("left are %v, want all but %s", left, stale.Path)
	}
	if err := alive.Close(); err != nil {
		t.Error(err)
	}
}

// Another process may sweep a directory before its owner has locked it. The owner then makes another one.
func TestSweepOfNewDirectories(t *testing.T) {
	t.Parallel()
	const prefix = "emulators-sweep-"
	root := t.TempDir()
	made := make(chan struct{})
	var sweeping sync.WaitGroup
	for range 2 {
		sweeping.Go(func() {
			for {
				select {
				case <-made:
					return
				default:
					SweepWorkDirs(root, prefix, func(string) error { return nil })
				}
			}
		})
	}
	for range 500 {
		dir, err := NewWorkDir(root, prefix)
		if err != nil {
			t.Errorf("a new directory: %v", err)
			break
		}
		if info, err := os.Stat(dir.Path); err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("the directory: %v, %v, want one that others may pass through", info, err)
		}
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	}
	close(made)
	sweeping.Wait()
}

// TestSweepKeepsNamedDirectories checks that a directory that a user named is not swept, even if its
// name has the prefix, nor one that NewWorkDir made and a user opened by its name later. An empty one
// may be of an owner that died before it marked the directory.
func TestSweepKeepsNamedDirectories(t *testing.T) {
	t.Parallel()
	const prefix = "emulators-sweep-"
	root := t.TempDir()
	named := filepath.Join(root, prefix+"dev")
	left, err := NewWorkDir(root, prefix)
	if err != nil {
		t.Fatal(err)
	}
	_ = left.Lock.Close() // what the owner's death does
	foreign := filepath.Join(root, prefix+"foreign")
	for _, path := range []string{named, left.Path} {
		dir, err := OpenWorkDir(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(path, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
	}
	empty := filepath.Join(root, prefix+"1")
	if err := errors.Join(os.MkdirAll(filepath.Join(foreign, "data"), 0o700), os.Mkdir(empty, 0o700)); err != nil {
		t.Fatal(err)
	}
	SweepWorkDirs(root, prefix, func(dir string) error {
		if dir != empty {
			t.Errorf("what runs in %s is killed", dir)
		}
		return nil
	})
	for _, path := range []string{named, left.Path, foreign} {
		if _, err := os.Stat(filepath.Join(path, "data")); err != nil {
			t.Errorf("a named directory was swept: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(foreign, lockName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file of a directory that is not ours: %v, want none", err)
	}
	if _, err := os.Stat(empty); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty directory without an owner: %v, want it swept", err)
	}
}

// TestInterruptedSweep checks that a sweep removes what an interrupted removal of a directory left.
func TestInterruptedSweep(t *testing.T) {
	t.Parallel()
	const prefix = "emulators-sweep-"
	root := t.TempDir()
	dir, err := NewWorkDir(root, prefix)
	if err != nil {
		t.Fatal(err)
	}
	// A directory that cannot be removed interrupts the removal, and its name sorts last.
	kept := filepath.Join(dir.Path, "z", "kept")
	if err := os.MkdirAll(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(kept, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		t.Skip("not applicable: root can remove every directory")
	}
	if err := os.Chmod(kept, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := dir.Close(); err == nil {
		t.Fatal("the directory was removed, though it cannot be")
	}
	if err := os.Chmod(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	SweepWorkDirs(root, prefix, func(string) error { return nil })
	if left, err := filepath.Glob(filepath.Join(root, prefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v, want none", left, err)
	}
}
