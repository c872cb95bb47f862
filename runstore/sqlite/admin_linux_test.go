package sqlite_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// locksOf returns how many locks this process has on a database's file and its shared memory. The system
// names no process for an open file description lock (OFDLCK). It lists its locks in parts, and a lock moves
// in the list while other files are locked, so one reading may lack a lock or hold it twice.
func locksOf(t *testing.T, path string) int {
	t.Helper()
	found := map[string]bool{}
	for range 5 {
		all, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Skipf("not applicable: the system does not list its locks: %v", err)
		}
		for _, name := range []string{path, path + "-shm"} {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			inode := fmt.Sprintf(":%d ", info.Sys().(*syscall.Stat_t).Ino)
			for line := range strings.Lines(string(all)) {
				ours := strings.Contains(line, "OFDLCK") || strings.Contains(line, "POSIX") && strings.Contains(line, fmt.Sprintf(" %d ", os.Getpid()))
				if _, lock, numbered := strings.Cut(line, ": "); numbered && ours && strings.Contains(line, inode) {
					found[lock] = true
				}
			}
		}
	}
	return len(found)
}

// The check of a file that is open in the same process drops none of the locks of its handle: a
// process beside it still finds the file in use.
func TestCheckKeepsLocks(t *testing.T) {
	t.Parallel()
	path := version1(t)
	if err := admin.Of("sqlite").Apply(t.Context(), runstore.URL{Scheme: "sqlite", Address: path}); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	before := locksOf(t, path)
	for _, f := range admin.Of("sqlite").Check(t.Context(), runstore.URL{Scheme: "sqlite", Address: path}) {
		if f.Status != admin.OK {
			t.Errorf("got %+v", f)
		}
	}
	if after := locksOf(t, path); before == 0 || after != before {
		t.Errorf("%d locks before the check, and %d after", before, after)
	}
}
