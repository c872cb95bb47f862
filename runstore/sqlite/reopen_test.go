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

// TestRebootAfterAWrite reboots with a clock set back. The store clock is not behind the time of the last write.
func TestRebootAfterAWrite(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(t *testing.T, s *sqlite.Store, lease runstore.Lease) error{
		"an append": appendEvent,
		"a record": func(t *testing.T, s *sqlite.Store, lease runstore.Lease) error {
			b := runstore.NewBatch("run", lease.Fence())
			b.Put("record", nil)
			_, err := s.Commit(t.Context(), b)
			return err
		},
		"a heartbeat": func(t *testing.T, s *sqlite.Store, lease runstore.Lease) error {
			_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "tape.db")
			h := embedded.NewHost()
			s := openAt(t, path, h)
			lease := held(t, s, runstore.MaxTTL)
			h.Advance(3 * time.Hour)
			before := now(t, s)
			if err := write(t, s, lease); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			rebooted := embedded.NewHost()
			rebooted.SetBoot("boot-2")
			rebooted.SetWall(-time.Hour)
			if n := now(t, openAt(t, path, rebooted)); n.Before(before) {
				t.Errorf("the store clock shows %v, behind the write after %v", n, before)
			}
		})
	}
}

// TestRebootAfterAnImport imports an event of another store, whose clock was an hour ahead, as the last one of the
// feed. Its time is not one that this store's clock has shown.
func TestRebootAfterAnImport(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	part := runstore.Import{Fence: held(t, s, time.Minute).Fence()}
	part.Events = []runstore.Event{{Seq: 1, Kind: "test", Time: now(t, s).Add(time.Hour)}}
	if _, err := s.Import(t.Context(), part); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rebooted := embedded.NewHost()
	rebooted.SetBoot("boot-2")
	s = openAt(t, path, rebooted)
	if n, wall := now(t, s), rebooted.Wall(); n.After(wall.Add(30 * time.Minute)) {
		t.Errorf("the store clock shows %v, want about the wall clock, %v", n, wall)
	}
	if events, err := s.ReadJournal(t.Context(), "run", 1, 1); err != nil || len(events) != 1 || !events[0].Time.Equal(part.Events[0].Time.Truncate(time.Microsecond)) {
		t.Errorf("got %+v, %v, want the event with its time", events, err)
	}
}

// TestRebootAfterAStep reboots after the store clock has followed a wall clock that was an hour ahead, and
// nothing else was written. It does not go back.
func TestRebootAfterAStep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	h := embedded.NewHost()
	s := openAt(t, path, h)
	h.SetWall(time.Hour)
	before := now(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rebooted := embedded.NewHost()
	rebooted.SetBoot("boot-2")
	if n := now(t, openAt(t, path, rebooted)); n.Before(before.Add(-time.Minute)) { // what passed since the step is not recorded
		t.Errorf("the store clock went back from %v to %v", before, n)
	}
}

// TestReopenWithoutABootClock opens a store again after the wall clock, the only one, was set back.
func TestReopenWithoutABootClock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	h := embedded.NewHost()
	h.SetBoot("")
	s := openAt(t, path, h)
	lease := held(t, s, time.Minute)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h.SetWall(-time.Hour)
	if n, at := now(t, openAt(t, path, h)), lease.ExpiresAt.Add(-time.Minute); n.Before(at) {
		t.Errorf("the store clock shows %v, before the grant at %v", n, at)
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

// TestCreateThroughALink creates a database through links that lead to no file yet. All names of the file lead
// to the same watermark.
func TestCreateThroughALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "data", "tape.db")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	first, second, folder := filepath.Join(dir, "first.db"), filepath.Join(dir, "second.db"), filepath.Join(dir, "folder")
	for link, target := range map[string]string{first: "second.db", second: filepath.Join("folder", "tape.db"), folder: "data"} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	s := openAt(t, first, embedded.NewHost())
	lease := held(t, s, time.Minute)
	for _, name := range []string{first, second, filepath.Join(folder, "tape.db"), path} {
		if all := epochs(t, openAt(t, name, embedded.NewHost())); len(all) != 0 {
			t.Errorf("opened as %s: got epochs %+v, want none", name, all)
		}
	}
	if err := appendEvent(t, s, lease); err != nil {
		t.Errorf("append by the holder: %v", err)
	}
	if all, err := filepath.Glob(filepath.Join(dir, "*-witness")); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v, want no watermark beside the links", all, err)
	}
}

// TestOpenThroughALinkToItself is refused.
func TestOpenThroughALinkToItself(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "tape.db")
	if err := os.Symlink(link, link); err != nil {
		t.Fatal(err)
	}
	if s, err := sqlite.Open(t.Context(), link, nil); !errors.Is(err, runstore.ErrUnavailable) {
		if err == nil {
			_ = s.Close()
		}
		t.Errorf("got %v, want ErrUnavailable", err)
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
