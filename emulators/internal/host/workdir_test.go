package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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
