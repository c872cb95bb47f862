package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	driver "modernc.org/sqlite"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
)

// TestLocksOutliveAnotherDescriptor closes another descriptor of the database file, as a program does
// that computes a hash of the file. The handle keeps its locks. Without them a process with an SQLite
// before 3.51 that opens and closes the file removes the log to which the handle still commits.
func TestLocksOutliveAnotherDescriptor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	openAt(t, path, embedded.NewHost())
	if _, err := driver.OFDLocking(true); errors.Is(err, driver.ErrOFDLockingUnavailable) {
		t.Skipf("not applicable: the kernel or the file system has locks of POSIX only: %v", err)
	}
	before := locksOf(t, path)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if after := locksOf(t, path); before == 0 || after != before {
		t.Errorf("%d locks before another descriptor was closed, and %d after", before, after)
	}
}
