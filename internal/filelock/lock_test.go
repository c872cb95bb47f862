package filelock_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tapestore/tapestore/internal/filelock"
)

// TestTry checks that one handle has the lock at a time, until it releases the lock or is closed.
func TestTry(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	try := func(f *os.File, want bool) {
		t.Helper()
		if locked, err := filelock.Try(f); err != nil || locked != want {
			t.Errorf("locked %v, %v; want %v", locked, err, want)
		}
	}
	first, second, third := open(), open(), open()
	try(first, true)
	try(second, false)
	filelock.Release(first)
	try(second, true)
	try(first, false)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	try(third, true)
}
