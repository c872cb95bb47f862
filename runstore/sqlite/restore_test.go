package sqlite_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// backup copies a database that is in use, with its log.
func backup(t *testing.T, path string) (copied string) {
	t.Helper()
	copied = filepath.Join(t.TempDir(), "tape.db")
	for _, suffix := range []string{"", "-wal"} {
		copyFile(t, path+suffix, copied+suffix)
	}
	return copied
}

// restored replaces a database whose processes were all killed by a backup, and opens it. The
// watermark stays as it is.
func restored(t *testing.T, path, backup string) *sqlite.Store {
	t.Helper()
	copyFile(t, path+"-witness", backup+"-witness")
	return openAt(t, backup, embedded.NewHost())
}

// checkEpochRaised fails the test unless the epoch was raised once.
func checkEpochRaised(t *testing.T, s *sqlite.Store) {
	t.Helper()
	if all := epochs(t, s); len(all) != 1 {
		t.Errorf("got epochs %+v, want one: acknowledged writes were lost", all)
	}
}

// TestRestoreAfterAKill restores a backup that lacks only the last write, after a kill: no handle
// was closed that could have recorded its progress.
func TestRestoreAfterAKill(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(t *testing.T, s *sqlite.Store, lease runstore.Lease) error{
		"an append": appendEvent,
		"a record": func(t *testing.T, s *sqlite.Store, lease runstore.Lease) error {
			b := runstore.NewBatch("run", lease.Fence())
			b.Put("record", nil)
			_, err := s.Commit(t.Context(), b)
			return err
		},
		"a grant": func(t *testing.T, s *sqlite.Store, _ runstore.Lease) error {
			_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "other", TTL: runstore.MaxTTL}, Preempt: "test",
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "tape.db")
			s := openAt(t, path, embedded.NewHost())
			lease := held(t, s, runstore.MaxTTL)
			if err := appendEvent(t, s, lease); err != nil {
				t.Fatal(err)
			}
			copied := backup(t, path)
			if err := write(t, s, lease); err != nil {
				t.Fatal(err)
			}
			checkEpochRaised(t, restored(t, path, copied))
		})
	}
}

// TestRefusedAppendIsNoProgress refuses the last append before all handles are closed. What is opened then is
// no restored backup.
func TestRefusedAppendIsNoProgress(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	lease := held(t, s, runstore.MaxTTL)
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	if err := appendEvent(t, s, lease); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("an append under a released lease: got %v, want ErrFenced", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if all := epochs(t, openAt(t, path, embedded.NewHost())); len(all) != 0 {
		t.Errorf("got epochs %+v, want none", all)
	}
}

// TestRestoreAfterAnIdleHandle closes a handle that has not written for long. It must not replace
// what another process has recorded since by its own older progress.
func TestRestoreAfterAnIdleHandle(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	idle := openAt(t, path, embedded.NewHost())
	busy := openAt(t, path, embedded.NewHost())
	lease := held(t, busy, runstore.MaxTTL)
	copied := backup(t, path)
	if err := appendEvent(t, busy, lease); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*sqlite.Store{busy, idle} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	checkEpochRaised(t, restored(t, path, copied))
}

// TestWatermarkIsLockedByATransaction tries to lock the watermark while a commit is synced. It must
// be locked until the commit is recorded: otherwise a process that is paused between the two could
// replace what others have recorded since by its own older progress.
func TestWatermarkIsLockedByATransaction(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	d := newDisk(t)
	s, err := sqlite.Open(t.Context(), path, (sqlite.Options{Clock: embedded.NewHost()}).OnFileSystem(d.name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	lease := held(t, s, runstore.MaxTTL)
	syncs := 0
	d.set(func(call, file string) fault {
		if call == "sync" && file == walFile {
			syncs++
			if unlock, ok := sqlite.LockWatermark(t, path); ok {
				unlock()
				t.Error("the watermark is not locked during a commit")
			}
		}
		return fault{}
	})
	for _, write := range []func() error{
		func() error { return appendEvent(t, s, lease) },
		func() error { return contend(t, s) }, // refused: nothing is committed
	} {
		_ = write()
		unlock, ok := sqlite.LockWatermark(t, path)
		if !ok {
			t.Fatal("the watermark is locked after the transaction")
		}
		unlock()
	}
	d.set(nil)
	if syncs == 0 {
		t.Error("no commit was synced")
	}
	if got, want := sqlite.Watermark(s).Position, lastPosition(t, s); got != want {
		t.Errorf("the watermark has position %d, want %d", got, want)
	}
}

// TestWatermarkIsUnlockedByAFailure lets each call to the disk fail in turn. The watermark must not stay
// locked after any outcome, because other processes could not write any more.
func TestWatermarkIsUnlockedByAFailure(t *testing.T) {
	t.Parallel()
	for call, f := range map[string]fault{
		"write": {code: sqlite3.SQLITE_FULL}, "sync": {code: sqlite3.SQLITE_IOERR_FSYNC}, "read": {code: sqlite3.SQLITE_IOERR_READ},
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "tape.db")
			d := newDisk(t)
			options := (sqlite.Options{Clock: embedded.NewHost()}).OnFileSystem(d.name)
			s, err := sqlite.Open(t.Context(), path, options)
			if err != nil {
				t.Fatal(err)
			}
			lease := held(t, s, runstore.MaxTTL)
			check := func(after string) {
				t.Helper()
				unlock, ok := sqlite.LockWatermark(t, path)
				if !ok {
					t.Fatalf("the watermark is locked after %s", after)
				}
				unlock()
			}
			d.set(func(got, _ string) (none fault) {
				if got == call {
					return f
				}
				return none
			})
			err = appendEvent(t, s, lease)
			check(fmt.Sprintf("an append that ended with %v", err))
			_ = s.Close()
			if s, err = sqlite.Open(t.Context(), path, options); err == nil {
				_ = s.Close()
			}
			check(fmt.Sprintf("opening the store ended with %v", err))
			d.set(nil)
		})
	}
}

// TestRestoreAfterARemovedWatermark lets one process remove its watermark and create another, as
// after a failed write, while a second process has the first file open. The second process then
// records its progress in the new file, where the next opening reads it.
func TestRestoreAfterARemovedWatermark(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	broken := openAt(t, path, embedded.NewHost())
	busy := openAt(t, path, embedded.NewHost())
	lease := held(t, busy, runstore.MaxTTL)
	sqlite.BreakWatermark(t, broken)
	for range 2 { // the first removes the watermark, the second makes it anew
		if err := appendEvent(t, broken, lease); err != nil {
			t.Fatal(err)
		}
	}
	copied := backup(t, path)
	if err := appendEvent(t, busy, lease); err != nil {
		t.Fatal(err)
	}
	checkEpochRaised(t, restored(t, path, copied))
}

// TestRestoreAfterAReplacedWatermark replaces the watermark of an open store by hand. 32 commits later the
// store records its progress in the new file, where the next opening reads it.
func TestRestoreAfterAReplacedWatermark(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	lease := held(t, s, runstore.MaxTTL)
	copyFile(t, path+"-witness", path+"-new")
	if err := os.Rename(path+"-new", path+"-witness"); err != nil {
		t.Fatal(err)
	}
	for range 32 {
		if err := appendEvent(t, s, lease); err != nil {
			t.Fatal(err)
		}
	}
	copied := backup(t, path)
	if err := appendEvent(t, s, lease); err != nil {
		t.Fatal(err)
	}
	checkEpochRaised(t, restored(t, path, copied))
}

// TestWatermarkKeepsOthersGrants appends by a handle that has granted nothing. The watermark still
// includes the grants of other handles.
func TestWatermarkKeepsOthersGrants(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	appends := openAt(t, path, embedded.NewHost())
	lease := held(t, openAt(t, path, embedded.NewHost()), runstore.MaxTTL)
	before, err := os.ReadFile(path + "-witness")
	if err != nil {
		t.Fatal(err)
	}
	if err := appendEvent(t, appends, lease); err != nil {
		t.Fatal(err)
	}
	was, is := sqlite.WatermarkOf(before), sqlite.Watermark(appends)
	if is.Changes != was.Changes || is.Position <= was.Position {
		t.Errorf("after an append the witness tells %+v, before it %+v; want the same changes and a higher position", is, was)
	}
}

// TestWatermarkThatCannotBeWritten breaks the watermark file of an open store. Commits continue,
// because they are in the database; the next opening must not trust the old watermark.
func TestWatermarkThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	lease := held(t, s, runstore.MaxTTL)
	copied := backup(t, path)
	for range 2 {
		sqlite.BreakWatermark(t, s)
		if err := appendEvent(t, s, lease); err != nil {
			t.Errorf("append with a witness that cannot be written: %v", err)
		}
		if _, err := os.Stat(path + "-witness"); err == nil {
			t.Errorf("a witness that could not be written is left as it was: %+v", sqlite.Watermark(s))
		}
	}
	checkEpochRaised(t, openAt(t, copied, embedded.NewHost()))
	// The next write creates the watermark again.
	if err := appendEvent(t, s, lease); err != nil {
		t.Fatal(err)
	}
	if got, want := sqlite.Watermark(s).Position, lastPosition(t, s); got != want {
		t.Errorf("the new witness tells position %d, want %d", got, want)
	}
}

// TestWatermarkThatCannotBeRead refuses to open a store that may have been restored.
func TestWatermarkThatCannotBeRead(t *testing.T) {
	t.Parallel()
	path, _, _, second, _ := restoreFixture(t)
	if err := os.Rename(path+"-witness", path+"-kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path+"-witness", 0o700); err != nil {
		t.Fatal(err)
	}
	if s, err := sqlite.Open(t.Context(), path, nil); !errors.Is(err, runstore.ErrUnavailable) {
		if err == nil {
			_ = s.Close()
		}
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if err := os.Remove(path + "-witness"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"-kept", path+"-witness"); err != nil {
		t.Fatal(err)
	}
	if err := appendEvent(t, openAt(t, path, embedded.NewHost()), second); err != nil {
		t.Errorf("append by the holder, once the witness can be read: %v", err)
	}
}

// TestRestoreOnAFailingDisk fails each write and each sync of opening a restored backup in turn,
// until it opens. The epoch is raised once, however often opening was tried.
func TestRestoreOnAFailingDisk(t *testing.T) {
	t.Parallel()
	for call, f := range map[string]fault{
		"write": {code: sqlite3.SQLITE_FULL}, "sync": {code: sqlite3.SQLITE_IOERR_FSYNC},
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			path, copied, first, second, _ := restoreFixture(t)
			copyFile(t, copied, path)
			d := newDisk(t)
			defer d.set(nil)
			for n := 1; ; n++ {
				d.set(nth(n, call, walFile, f))
				s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost()}.OnFileSystem(d.name))
				if d.set(nil) > 0 && err == nil {
					t.Errorf("%s %d failed, and the store was opened", call, n)
				}
				if err != nil {
					if !errors.Is(err, runstore.ErrUnavailable) {
						t.Errorf("%s %d failed: got %v, want ErrUnavailable", call, n, err)
					}
					continue
				}
				checkEpochRaised(t, s)
				for _, lease := range []runstore.Lease{first, second} {
					if err := appendEvent(t, s, lease); !errors.Is(err, runstore.ErrFenced) {
						t.Errorf("append under token %v: got %v, want ErrFenced", lease.Token, err)
					}
				}
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				if n == 1 {
					t.Error("opening met no fault")
				}
				return
			}
		})
	}
}

// TestRestoreOverALeftoverLog puts a backup over the file of a store that was killed, and leaves the log. SQLite
// would replay the log onto the backup. The store is refused until the log is deleted, and left as it is.
func TestRestoreOverALeftoverLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	lease := held(t, s, runstore.MaxTTL)
	saved := filepath.Join(t.TempDir(), "backup.db")
	exec(t, path, "VACUUM INTO '"+saved+"'")
	if err := appendEvent(t, s, lease); err != nil {
		t.Fatal(err)
	}
	killed := backup(t, path)
	if !driver.OFDLockingEnabled() {
		t.Skip("not applicable: without open file description locks the header of a file is not read")
	}
	copyFile(t, path+"-witness", killed+"-witness")
	copyFile(t, saved, killed)
	log, err := os.ReadFile(killed + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	for _, options := range []sqlite.Options{{}, {ReadOnly: true}} {
		s, err := sqlite.Open(t.Context(), killed, &options)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), "delete "+killed+"-wal") {
			t.Errorf("open with the log: got %v, want ErrInvalid and what to delete", err)
		}
	}
	if left, err := os.ReadFile(killed + "-wal"); err != nil || !bytes.Equal(left, log) {
		t.Errorf("the log was changed, error %v", err)
	}
	if err := os.Remove(killed + "-wal"); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, killed, embedded.NewHost())
	checkEpochRaised(t, s)
	if err := appendEvent(t, s, lease); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("append by the holder: got %v, want ErrFenced", err)
	}
}
