package sqlite_test

import (
	"errors"
	"os"
	osexec "os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// withoutDescriptors marks the process that runs out of file descriptors.
const withoutDescriptors = "TAPESTORE_TEST_WITHOUT_DESCRIPTORS"

// TestNoDescriptorsLeft lets a process run out of file descriptors. An open store still writes, and
// keeps its watermark. What needs a descriptor fails with ErrUnavailable, including opening another
// store, because the caller may retry. The limit applies to a whole process, so the test starts
// one.
func TestNoDescriptorsLeft(t *testing.T) {
	t.Parallel()
	if os.Getenv(withoutDescriptors) == "" {
		cmd := osexec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoDescriptorsLeft$")
		cmd.Env = append(os.Environ(), withoutDescriptors+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	lease := held(t, s, runstore.MaxTTL)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, path, embedded.NewHost())
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Open(path); !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("open a file: got %v, want EMFILE", err)
	}
	if err := appendEvent(t, s, lease); err != nil {
		t.Errorf("append: %v", err)
	}
	// SQLite opens the log for a reader when that reads for the first time.
	if _, err := s.GetRun(t.Context(), "run"); err != nil && !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("get run: got %v, want none or ErrUnavailable", err)
	}
	if _, err := os.Stat(path + "-witness"); err != nil {
		t.Errorf("the witness: %v", err)
	}
	for _, path := range []string{path, path + "-new"} {
		another, err := sqlite.Open(t.Context(), path, nil)
		if err == nil {
			_ = another.Close()
		}
		if !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, syscall.EMFILE) {
			t.Errorf("open %s: got %v, want ErrUnavailable and EMFILE", path, err)
		}
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if n := eventsOf(t, s); n != 1 {
		t.Errorf("with descriptors again: got %d events, want 1", n)
	}
}
