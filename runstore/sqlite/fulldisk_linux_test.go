package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// smallDisk returns a directory on a separate file system of 2 MB.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tapestore-test", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("a full disk is a small tmpfs, which needs root: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// fill writes to a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk commits until a real disk is full, where the log, its index and the watermark
// are all short of room. Nothing acknowledged is lost, nothing refused is stored, reads go
// on, and with room again so do writes.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t)
	path := filepath.Join(dir, "tape.db")
	s := openAt(t, path, embedded.NewHost())
	lease := held(t, s, runstore.MaxTTL)
	ballast := filepath.Join(dir, "ballast")
	applied := 0
	for range 3 {
		refused := 0
		for i := 0; refused < 3; i++ {
			if i == 3 {
				fill(t, ballast)
			}
			b := runstore.NewBatch("run", lease.Fence())
			b.Append("test", make([]byte, 10_000))
			_, err := s.Commit(t.Context(), b)
			switch {
			case err == nil:
				applied++
			case !errors.Is(err, runstore.ErrUnavailable):
				t.Fatalf("commit on a full disk: got %v, want ErrUnavailable", err)
			default:
				refused++
			}
			if n := eventsOf(t, s); n != applied {
				t.Fatalf("after %v the journal holds %d events, want the %d acknowledged", err, n, applied)
			}
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if n := eventsOf(t, survivor(t, path)); n != applied {
			t.Errorf("a kill leaves %d events, want the %d acknowledged", n, applied)
		}
	}
	if err := appendEvent(t, s, lease); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestOpenOnAFullDisk finds no room for a new database: opening fails, and later succeeds.
func TestOpenOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t)
	path, ballast := filepath.Join(dir, "tape.db"), filepath.Join(dir, "ballast")
	fill(t, ballast)
	if s, err := sqlite.Open(t.Context(), path, nil); !errors.Is(err, runstore.ErrUnavailable) {
		if err == nil {
			_ = s.Close()
		}
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	held(t, openAt(t, path, embedded.NewHost()), runstore.MaxTTL)
}
