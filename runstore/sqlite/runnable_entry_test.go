package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// placeOf returns the time of the run "run" in the index of runnable runs.
func placeOf(t *testing.T, path string) time.Time {
	t.Helper()
	return runstore.FromMicros(query[int64](t, path, "SELECT coalesce(place, 0) FROM runs WHERE id = CAST('run' AS BLOB)"))
}

// driven creates the run "run", which is runnable at once and leased for a second.
func driven(t *testing.T, s *sqlite.Store) runstore.Created {
	t.Helper()
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{
		ID: "run", Runnable: runstore.After(0), Lease: &runstore.LeaseSpec{Owner: "owner", TTL: time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func renewFor(t *testing.T, s *sqlite.Store, lease runstore.Lease, ttl time.Duration, writes runstore.Writes) runstore.Lease {
	t.Helper()
	renewed, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: ttl, Writes: writes})
	if err != nil {
		t.Fatal(err)
	}
	return renewed.Lease
}

// due returns the runs that a scan finds to be runnable now.
func due(t *testing.T, s *sqlite.Store) (ids []runstore.RunID) {
	t.Helper()
	entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 10})
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	for _, e := range entries {
		ids = append(ids, e.Run)
	}
	return ids
}

// TestScanMovesTheEntryOfARenewedLease renews a lease, with and without writes. The run's entry
// stays at its first expiry; a scan that meets it while the lease is live moves it to the present
// expiry.
func TestScanMovesTheEntryOfARenewedLease(t *testing.T) {
	t.Parallel()
	path, host := filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost()
	s := openAt(t, path, host)
	created := driven(t, s)
	granted := created.Lease.ExpiresAt
	if got := placeOf(t, path); !got.Equal(granted) {
		t.Fatalf("granted: the entry is at %v, want the expiry %v", got, granted)
	}
	lease := renewFor(t, s, created.Lease, time.Minute, runstore.Writes{})
	var writes runstore.Writes
	writes.Append("test", nil)
	writes.Put("doc", nil)
	lease = renewFor(t, s, lease, 2*time.Minute, writes)
	if got := placeOf(t, path); !got.Equal(granted) {
		t.Errorf("renewed: the entry is at %v, want the expiry as granted, %v", got, granted)
	}
	host.Advance(2 * time.Second)
	for range 2 {
		if ids := due(t, s); len(ids) != 0 {
			t.Errorf("got runnable runs %v, want none: the lease was renewed", ids)
		}
		sqlite.AwaitBackground(s)
		if got := placeOf(t, path); !got.Equal(lease.ExpiresAt) {
			t.Errorf("scanned: the entry is at %v, want the expiry as renewed, %v", got, lease.ExpiresAt)
		}
	}
	host.Advance(2 * time.Minute)
	if ids := due(t, s); len(ids) != 1 {
		t.Errorf("got runnable runs %v once the lease has expired, want the run", ids)
	}
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	if got := placeOf(t, path); !got.Equal(created.Run.RunnableAt) {
		t.Errorf("released: the entry is at %v, want %v", got, created.Run.RunnableAt)
	}
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Purge = true
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got := placeOf(t, path); !got.IsZero() {
		t.Errorf("purged: the entry is at %v, want none", got)
	}
}

// TestMoveAfterARelease runs a move after the release of the lease that the scan saw: nothing
// moves.
func TestMoveAfterARelease(t *testing.T) {
	t.Parallel()
	path, host := filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost()
	s := openAt(t, path, host)
	created := driven(t, s)
	lease := renewFor(t, s, created.Lease, time.Minute, runstore.Writes{})
	host.Advance(2 * time.Second)
	var released sync.WaitGroup
	err := sqlite.Write(t.Context(), s, func() {
		released.Go(func() {
			if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
				t.Errorf("release: %v", err)
			}
		})
		awaitQueued(t, s, 1)
		due(t, s)
		awaitQueued(t, s, 2) // the release, and the move behind it
	})
	if err != nil {
		t.Fatal(err)
	}
	released.Wait()
	sqlite.AwaitBackground(s)
	if got := placeOf(t, path); !got.Equal(created.Run.RunnableAt) {
		t.Errorf("the entry is at %v, want %v: the lease was released before the move", got, created.Run.RunnableAt)
	}
}

// TestScanWhereNothingCanBeWritten scans entries that cannot be moved. The scan succeeds, and the
// next scan finds them again.
func TestScanWhereNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	d, path, host := newDisk(t), filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost()
	t.Cleanup(func() { d.set(nil) })
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: host}.OnFileSystem(d.name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	created := driven(t, s)
	lease := renewFor(t, s, created.Lease, time.Minute, runstore.Writes{})
	host.Advance(2 * time.Second)

	d.set(on("write", walFile, fault{code: sqlite3.SQLITE_FULL}))
	for range 2 {
		if ids := due(t, s); len(ids) != 0 {
			t.Errorf("got runnable runs %v, want none", ids)
		}
		sqlite.AwaitBackground(s)
	}
	if d.set(nil) == 0 {
		t.Error("no move was tried")
	}
	if got := placeOf(t, path); !got.Equal(created.Lease.ExpiresAt) {
		t.Errorf("the entry is at %v on a full disk, want the expiry as granted, %v", got, created.Lease.ExpiresAt)
	}
	looking, err := sqlite.Open(t.Context(), path, &sqlite.Options{Clock: host, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = looking.Close() })
	if ids := due(t, looking); len(ids) != 0 || sqlite.Moving(looking) {
		t.Errorf("a store that is only read: got runnable runs %v, want none, and nothing to be moved", ids)
	}
	due(t, s)
	sqlite.AwaitBackground(s)
	if got := placeOf(t, path); !got.Equal(lease.ExpiresAt) {
		t.Errorf("the entry is at %v, want the expiry as renewed, %v, once there is room", got, lease.ExpiresAt)
	}
}

// TestCloseEndsAMove closes a handle whose move waits for another process.
func TestCloseEndsAMove(t *testing.T) {
	t.Parallel()
	path, host := filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost()
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{Clock: host})
	if err != nil {
		t.Fatal(err)
	}
	created := driven(t, s)
	renewFor(t, s, created.Lease, time.Minute, runstore.Writes{})
	host.Advance(2 * time.Second)
	resume := embedded.StallSQLite(t, path)
	due(t, s)
	if !sqlite.Moving(s) {
		t.Error("the move does not wait for the write lock")
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	resume()
	if got := placeOf(t, path); !got.Equal(created.Lease.ExpiresAt) {
		t.Errorf("the entry is at %v, want the expiry as granted, %v", got, created.Lease.ExpiresAt)
	}
}

// renewedRuns creates n runs whose leases were renewed past the expiry as granted, which is over.
func renewedRuns(t *testing.T, s *sqlite.Store, host *embedded.Host, n int) {
	t.Helper()
	lease := &runstore.LeaseSpec{Owner: "owner", TTL: time.Second}
	for i := range n {
		created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("run-", i)), Runnable: runstore.After(0), Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		renewFor(t, s, created.Lease, time.Minute, runstore.Writes{})
	}
	host.Advance(2 * time.Second)
}

// movedEntries returns how many runs have their entry at the present expiry of their lease.
func movedEntries(t *testing.T, path string) int64 {
	t.Helper()
	return query[int64](t, path, "SELECT count(*) FROM runs WHERE place = expires")
}

// TestCloseEndsAMoveOfManyEntries closes a handle while it commits the first of two transactions of moves. The
// second does not begin.
func TestCloseEndsAMoveOfManyEntries(t *testing.T) {
	t.Parallel()
	d, path, host := newDisk(t), filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost()
	t.Cleanup(func() { d.set(nil) })
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: host, Synchronous: sqlite.Normal}.OnFileSystem(d.name))
	if err != nil {
		t.Fatal(err)
	}
	renewedRuns(t, s, host, sqlite.MovesPerCommit+1)
	committing := make(chan struct{})
	commits := sync.OnceFunc(func() {
		close(committing)
		<-sqlite.Closing(s)
	})
	d.set(func(call, file string) fault {
		if call == "write" && file == walFile {
			commits()
		}
		return fault{}
	})
	due(t, s)
	<-committing
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if moved := movedEntries(t, path); moved != sqlite.MovesPerCommit {
		t.Errorf("%d entries were moved, want the %d of the first transaction", moved, sqlite.MovesPerCommit)
	}
}

// TestScanBehindItsDeadlineMovesEntries lets the deadline of a scan end when it has read the first rows. The scan
// fails, and the entries that it met are moved.
func TestScanBehindItsDeadlineMovesEntries(t *testing.T) {
	t.Parallel()
	path, host := filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost()
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{Clock: host, Synchronous: sqlite.Normal})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	const runs = sqlite.RowsPerLook + 10
	renewedRuns(t, s, host, runs)
	looking, err := sqlite.Open(t.Context(), path, &sqlite.Options{Clock: host, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = looking.Close() })
	scan := func(s *sqlite.Store, hook func() error) error {
		_, err := s.ScanIndex(hookContext{t.Context(), hook}, runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 10})
		return err
	}
	looks := 0 // of a whole scan; the last is after RowsPerLook rows
	if err := scan(looking, func() error { looks++; return nil }); err != nil {
		t.Fatal(err)
	}
	err = scan(s, func() error {
		if looks--; looks <= 0 {
			return context.DeadlineExceeded
		}
		return nil
	})
	if !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want ErrUnavailable and context.DeadlineExceeded", err)
	}
	sqlite.AwaitBackground(s)
	if moved := movedEntries(t, path); moved != sqlite.RowsPerLook {
		t.Errorf("%d entries were moved, want the %d that the scan met", moved, sqlite.RowsPerLook)
	}
	due(t, s)
	sqlite.AwaitBackground(s)
	if moved := movedEntries(t, path); moved != runs {
		t.Errorf("%d entries were moved after the next scan, want %d", moved, runs)
	}
}
