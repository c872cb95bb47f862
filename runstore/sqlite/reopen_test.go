package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// TestVacuumedBackupIsPutIntoWAL opens a backup made by VACUUM INTO, which has lost its journal
// mode. Without WAL, readers and writers would wait for each other.
func TestVacuumedBackupIsPutIntoWAL(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	backup := path + "-backup"
	held(t, openAt(t, path, embedded.NewHost()), time.Minute)
	exec(t, path, "VACUUM INTO '"+backup+"'")
	s := openAt(t, backup, embedded.NewHost())
	if mode := sqlite.JournalMode(t.Context(), s); mode != "wal" {
		t.Errorf("got journal mode %q, want wal", mode)
	}
}

// TestWatermarkOfTheLastAppend checks that the watermark includes the last append, however soon
// after that the store was closed.
func TestWatermarkOfTheLastAppend(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	lease := held(t, s, runstore.MaxTTL)
	if err := appendEvent(t, s, lease); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	copyFile(t, path, path+"-backup")
	s = openAt(t, path, embedded.NewHost())
	if err := appendEvent(t, s, lease); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	copyFile(t, path+"-backup", path)
	if all := epochs(t, openAt(t, path, embedded.NewHost())); len(all) != 1 {
		t.Errorf("got epochs %+v, want one: an append was lost", all)
	}
}

// TestRebootAfterAppends reboots with a clock set back. The store clock is not behind the events
// that it has stamped.
func TestRebootAfterAppends(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	h := embedded.NewHost()
	s := openAt(t, path, h)
	lease := held(t, s, time.Minute)
	h.Advance(3 * time.Hour)
	if err := appendEvent(t, s, lease); err != nil {
		t.Fatal(err)
	}
	events, err := s.ReadJournal(t.Context(), "run", 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rebooted := embedded.NewHost()
	rebooted.SetBoot("boot-2")
	rebooted.SetWall(-time.Hour)
	if n := now(t, openAt(t, path, rebooted)); n.Before(events[0].Time) {
		t.Errorf("the store clock shows %v, before the event of %v", n, events[0].Time)
	}
}

// TestOpenThroughALink opens a database through a link, which leads to the same watermark.
func TestOpenThroughALink(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	link := filepath.Join(t.TempDir(), "link.db")
	s := openAt(t, path, embedded.NewHost())
	lease := held(t, s, time.Minute)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if all := epochs(t, openAt(t, link, embedded.NewHost())); len(all) != 0 {
		t.Errorf("got epochs %+v, want none", all)
	}
	if err := appendEvent(t, s, lease); err != nil {
		t.Errorf("append by the holder: %v", err)
	}
}

func TestAnotherHandleOfAClosedStore(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewHandle().GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

// TestPollingFollowsTheWallClock only polls a queue. The store clock still follows the wall clock.
func TestPollingFollowsTheWallClock(t *testing.T) {
	t.Parallel()
	h := embedded.NewHost()
	s := openAt(t, filepath.Join(t.TempDir(), "tape.db"), h)
	held(t, s, time.Minute)
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Put("timer", nil, runstore.Place{Index: "timers", At: runstore.After(time.Minute)})
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	h.SetWall(time.Hour)
	due, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "timers", Limit: 10})
	if err != nil || len(due) != 1 {
		t.Errorf("got %d timers due, %v, want 1", len(due), err)
	}
}
