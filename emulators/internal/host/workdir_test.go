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
