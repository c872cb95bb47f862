package sqlite_test

import (
	"errors"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

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

// TestRefusedOpenKeepsLocks checks that a failure to open a database leaves the locks of a store that
// the process has open on it. Without them another process that closes the database removes its log.
func TestRefusedOpenKeepsLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tape.db")
	openAt(t, path, embedded.NewHost())
	// No file name has more than 255 bytes.
	_, refused := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), strings.Repeat("a", 256)), nil)
	if !errors.Is(refused, runstore.ErrUnavailable) {
		t.Fatalf("open a file with a long name: got %v, want ErrUnavailable", refused)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // ends the store's locks
	locked := func() bool {
		// A lock of this kind conflicts with those of the process, too.
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
			t.Fatal(err)
		}
		return lock.Type != unix.F_UNLCK
	}
	if !locked() {
		t.Fatal("an open store has no lock on its file")
	}
	_ = sqlite.Explain(path, refused) // the error of an open that failed
	if !locked() {
		t.Error("a failure to open the file ended the locks of the open store")
	}
}
