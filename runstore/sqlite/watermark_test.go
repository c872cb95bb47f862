package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

func appendEvent(t *testing.T, s *sqlite.Store, lease runstore.Lease) error {
	t.Helper()
	b := runstore.NewBatch(lease.Run, lease.Fence())
	b.Append("test", []byte("data"))
	_, err := s.Commit(t.Context(), b)
	return err
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func epochs(t *testing.T, s *sqlite.Store) []runstore.EpochChange {
	t.Helper()
	all, err := s.Epochs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func lastPosition(t *testing.T, s *sqlite.Store) runstore.Position {
	t.Helper()
	events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: runstore.MaxPage})
	if err != nil {
		t.Fatal(err)
	}
	return events[len(events)-1].Position
}

// restoreFixture returns a store with a history: a backup from its first part, and a lease and
// events that the backup does not contain.
func restoreFixture(t *testing.T) (path, backup string, first, second runstore.Lease, last runstore.Position) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tape.db")
	backup = path + "-backup"
	s := openAt(t, path, embedded.NewHost())
	first = held(t, s, runstore.MaxTTL)
	if err := appendEvent(t, s, first); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // the write-ahead log is part of the file now
		t.Fatal(err)
	}
	copyFile(t, path, backup)

	s = openAt(t, path, embedded.NewHost())
	granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "second", TTL: runstore.MaxTTL}, Preempt: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	second = granted.Lease
	for range 3 {
		if err := appendEvent(t, s, second); err != nil {
			t.Fatal(err)
		}
	}
	last = lastPosition(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path, backup, first, second, last
}

func TestRestoredBackupRaisesTheEpoch(t *testing.T) {
	t.Parallel()
	path, backup, first, second, last := restoreFixture(t)
	copyFile(t, backup, path)
	s := openAt(t, path, embedded.NewHost())
	if all := epochs(t, s); len(all) != 1 || all[0].Epoch != 1 || all[0].Reason == "" {
		t.Fatalf("epochs: got %+v, want one with its reason", all)
	}
	for name, lease := range map[string]runstore.Lease{"the backup's holder": first, "the lost holder": second} {
		if err := appendEvent(t, s, lease); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("append by %s: got %v, want ErrFenced", name, err)
		}
	}
	third, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "third", TTL: runstore.MaxTTL},
	})
	if err != nil || third.Token <= second.Token {
		t.Fatalf("acquire: token %v, error %v, want a token above %v", third.Token, err, second.Token)
	}
	if err := appendEvent(t, s, third.Lease); err != nil {
		t.Fatal(err)
	}
	// A reader that had seen the lost events misses none of the new ones.
	events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: last, Limit: runstore.MaxPage})
	if err != nil || len(events) != 1 || events[0].Position <= last {
		t.Errorf("feed after %d: got %+v, %v, want the one event since", last, events, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if all := epochs(t, openAt(t, path, embedded.NewHost())); len(all) != 1 {
		t.Errorf("reopened: got epochs %+v, want no other", all)
	}
}

// TestBackupThatIsRestoredTwice restores a backup, grants a lease, and restores the same backup again.
// Nothing that the first restored store gave out is given out by the second.
func TestBackupThatIsRestoredTwice(t *testing.T) {
	t.Parallel()
	path, backup, _, _, _ := restoreFixture(t)
	var before runstore.Lease
	var last runstore.Position
	for restores := range runstore.Epoch(3) {
		copyFile(t, backup, path)
		s := openAt(t, path, embedded.NewHost())
		if all := epochs(t, s); len(all) != 1 || all[0].Epoch != restores+1 {
			t.Errorf("restore %d: got epochs %+v, want %d", restores+1, all, restores+1)
		}
		granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "third", TTL: runstore.MaxTTL},
		})
		if err != nil || granted.Token <= before.Token {
			t.Errorf("restore %d: got token %v, %v, want one above %v", restores+1, granted.Token, err, before.Token)
		}
		if err := appendEvent(t, s, granted.Lease); err != nil {
			t.Fatal(err)
		}
		if at := lastPosition(t, s); at <= last {
			t.Errorf("restore %d: got an event at position %v, want one above %v", restores+1, at, last)
		}
		before, last = granted.Lease, lastPosition(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCopiedDatabaseRaisesTheEpoch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		place func(t *testing.T, path, copied string)
	}{
		{"without its witness", func(*testing.T, string, string) {}},
		{"over another database's witness", func(t *testing.T, path, copied string) {
			s := openAt(t, copied, embedded.NewHost())
			held(t, s, runstore.MaxTTL)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path, _, _, second, _ := restoreFixture(t)
			copied := filepath.Join(t.TempDir(), "tape.db")
			tc.place(t, path, copied)
			copyFile(t, path, copied)
			s := openAt(t, copied, embedded.NewHost())
			if all := epochs(t, s); len(all) != 1 {
				t.Errorf("epochs: got %+v, want one", all)
			}
			if err := appendEvent(t, s, second); !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("append by the holder: got %v, want ErrFenced", err)
			}
		})
	}
}

func TestMovedWithItsWatermarkKeepsTheEpoch(t *testing.T) {
	t.Parallel()
	path, _, _, second, _ := restoreFixture(t)
	moved := filepath.Join(t.TempDir(), "moved.db")
	for _, suffix := range []string{"", "-witness"} {
		if err := os.Rename(path+suffix, moved+suffix); err != nil {
			t.Fatal(err)
		}
	}
	s := openAt(t, moved, embedded.NewHost())
	if all := epochs(t, s); len(all) != 0 {
		t.Errorf("epochs: got %+v, want none", all)
	}
	if err := appendEvent(t, s, second); err != nil {
		t.Errorf("append by the holder: %v", err)
	}
}

// TestTornWatermark damages the watermark. It counts as missing, so the epoch is raised.
func TestTornWatermark(t *testing.T) {
	t.Parallel()
	path, _, _, second, _ := restoreFixture(t)
	if err := os.WriteFile(path+"-witness", []byte(`{"Incarnation":"`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, path, embedded.NewHost())
	if err := appendEvent(t, s, second); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("append by the holder: got %v, want ErrFenced", err)
	}
}
