package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// TestCloseLeavesOneFile closes the last handle, which folds the log into the file, even while a
// caller waits for wake-ups. Then the file can be moved.
func TestCloseLeavesOneFile(t *testing.T) {
	t.Parallel()
	for range 20 {
		path := filepath.Join(t.TempDir(), "tape.db")
		s, err := sqlite.Open(t.Context(), path, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			if _, err := s.Wakeups(ctx); err != nil {
				t.Fatal(err)
			}
		}
		held(t, s, runstore.MaxTTL)
		cancel() // the watchers are on their way out, and Close waits for them
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"-wal", "-shm"} {
			if _, err := os.Stat(path + suffix); err == nil {
				t.Fatalf("%s is left", filepath.Base(path+suffix))
			}
		}
	}
}

// TestReadOnly opens a store read-only. It shows everything and changes nothing, not even what
// opening it for writing would change: its watermark shows that it is a restored backup.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	path, backup, first, _, _ := restoreFixture(t)
	copyFile(t, backup, path)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{ReadOnly: true, Clock: embedded.NewHost()})
	if err != nil {
		t.Fatal(err)
	}
	run, err := s.GetRun(t.Context(), "run")
	if err != nil || run.Holder.Token != first.Token || run.LastSeq != 1 {
		t.Errorf("got %+v, %v, want the backup's run with its holder", run, err)
	}
	if err := appendEvent(t, s, first); !errors.Is(err, runstore.ErrUnsupported) {
		t.Errorf("append: got %v, want ErrUnsupported", err)
	}
	if _, err := s.Now(t.Context()); err != nil {
		t.Errorf("now: %v", err)
	}
	if all := epochs(t, s); len(all) != 0 {
		t.Errorf("got epochs %+v, want none", all)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the file was changed (%v)", err)
	}
}

// TestReadOnlyBehindTheWallClock opens a store read-only on a host that then is suspended. The store clock would
// have to be set again, which is left to handles that write: the reads go on.
func TestReadOnlyBehindTheWallClock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	h := embedded.NewHost()
	held(t, openAt(t, path, h), time.Minute)
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{ReadOnly: true, Clock: h})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	before := now(t, s)
	h.SetWall(time.Hour)
	if after := now(t, s); after.Before(before) {
		t.Errorf("the store clock went from %v back to %v", before, after)
	}
	for _, index := range []runstore.IndexName{runstore.IndexRuns, "timers"} {
		if _, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, Limit: 1}); err != nil {
			t.Errorf("scan %q: %v", index, err)
		}
	}
}

func TestReadOnlyCreatesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "empty.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"missing.db": runstore.ErrInvalid, "empty.db": runstore.ErrUnsupported} {
		if _, err := sqlite.Open(t.Context(), filepath.Join(dir, name), &sqlite.Options{ReadOnly: true}); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("got %v, %v, want the empty file alone", left, err)
	}
	if info, err := left[0].Info(); err != nil || info.Size() != 0 {
		t.Errorf("the empty file was written: %v, %v", info, err)
	}
}
