package sqlite_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// openMode opens a store in a boot of the host. It is closed by the test or at its end.
func openMode(t *testing.T, path string, mode sqlite.Synchronous, boot string) *sqlite.Store {
	t.Helper()
	h := embedded.NewHost()
	h.SetBoot(boot)
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{Clock: h, Synchronous: mode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestPowerCut loses commits that were not synced, and the lines of the watermark about them. After the
// next boot the first opening in either mode raises the epoch, so that no token and no position is given
// out twice, and later openings do not.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	for _, next := range []sqlite.Synchronous{sqlite.Normal, sqlite.Full} {
		t.Run("then "+string(next), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "tape.db")
			held(t, openMode(t, path, sqlite.Full, "boot-1"), runstore.MaxTTL)
			s := openMode(t, path, sqlite.Normal, "boot-1")
			copied := survivorPath(t, path)
			lost, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "second", TTL: runstore.MaxTTL}, Preempt: "test",
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := appendEvent(t, s, lost.Lease); err != nil {
				t.Fatal(err)
			}
			last := lastPosition(t, s)

			s = openMode(t, copied, next, "boot-2")
			checkEpochRaised(t, s)
			granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "third", TTL: runstore.MaxTTL},
			})
			if err != nil || granted.Token <= lost.Token {
				t.Fatalf("got token %v, %v, want one above %v", granted.Token, err, lost.Token)
			}
			if err := appendEvent(t, s, lost.Lease); !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("append by the lost holder: got %v, want ErrFenced", err)
			}
			if err := appendEvent(t, s, granted.Lease); err != nil {
				t.Fatal(err)
			}
			if at := lastPosition(t, s); at <= last {
				t.Errorf("got an event at position %v, want one above %v", at, last)
			}
			checkEpochRaised(t, openMode(t, copied, sqlite.Normal, "boot-2"))
		})
	}
}

// TestBootWithoutUnsyncedCommits opens a store in several boots of the host. Only the first opening after a boot
// in which commits were not synced raises the epoch.
func TestBootWithoutUnsyncedCommits(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	for _, step := range []struct {
		mode   sqlite.Synchronous
		boot   string
		epochs int
	}{
		{sqlite.Full, "boot-1", 0},
		{sqlite.Normal, "boot-2", 0},
		{sqlite.Full, "boot-2", 0},
		{sqlite.Full, "", 1}, // it may be another boot
		{sqlite.Normal, "", 2},
		{sqlite.Full, "boot-2", 2},
		{sqlite.Full, "boot-3", 3}, // commits of boot-2 may be lost
		{sqlite.Full, "boot-4", 3},
	} {
		s := openMode(t, path, step.mode, step.boot)
		if all := epochs(t, s); len(all) != step.epochs {
			t.Errorf("opened with %s in %s: got epochs %+v, want %d", step.mode, step.boot, all, step.epochs)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpeningAndEpochAreSynced opens a store with NORMAL and raises the epoch. Both are synced: after a power
// cut, the next opening must find that the store was opened with NORMAL, and raise an epoch that was not given out.
func TestOpeningAndEpochAreSynced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	held(t, openMode(t, path, sqlite.Full, "boot-1"), runstore.MaxTTL) // it has created the log
	d := newDisk(t)
	defer d.set(nil)
	syncs := 0
	d.set(func(call, file string) fault {
		if call == "sync" && file == walFile {
			syncs++
		}
		return fault{}
	})
	options := (sqlite.Options{Clock: embedded.NewHost(), Synchronous: sqlite.Normal}).OnFileSystem(d.name)
	s, err := sqlite.Open(t.Context(), path, options)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, step := range []struct {
		name string
		do   func() error
		want bool
	}{
		{"opening", func() error { return nil }, true},
		{"an epoch", func() error { _, err := s.RaiseEpoch(t.Context(), "test"); return err }, true},
		{"a run", func() error { _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "other"}); return err }, false},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := syncs > 0; got != step.want {
			t.Errorf("%s was synced %d times, want that it is synced: %t", step.name, syncs, step.want)
		}
		syncs = 0
	}
}

// TestAcknowledgedCommitsSurviveAPowerCut keeps, of each file, the content of its last sync. After every
// acknowledged commit a store that is opened on that has the commit.
func TestAcknowledgedCommitsSurviveAPowerCut(t *testing.T) {
	t.Parallel()
	d, path, left := newDisk(t), filepath.Join(t.TempDir(), "tape.db"), filepath.Join(t.TempDir(), "tape.db")
	t.Cleanup(func() { d.set(nil) })
	d.set(func(call, file string) fault {
		if call == "sync" && (file == mainFile || file == walFile) {
			copyFile(t, path+file, left+file)
		}
		return fault{}
	})
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost()}.OnFileSystem(d.name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	lease := held(t, s, runstore.MaxTTL)
	for n := range 5 {
		if err := appendEvent(t, s, lease); err != nil {
			t.Fatal(err)
		}
		if got := eventsOf(t, openMode(t, survivorPath(t, left), sqlite.Full, "boot-2")); got != n+1 {
			t.Errorf("after the cut there are %d events, want the %d that were acknowledged", got, n+1)
		}
	}
}
