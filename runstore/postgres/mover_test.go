package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/engines"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

const (
	// fillLeased stores runs that are runnable since an hour and under live leases, with places at
	// $2.
	fillLeased = `INSERT INTO tapestore.runs (last_seq, token, version_floor, batches, created, runnable, expires, indexed_expires, place, status, grant_state,
			purged, is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
		SELECT 0, 1, 0, 0, clock_timestamp(), clock_timestamp() - interval '1 hour', clock_timestamp() + interval '1 hour', $2::timestamptz, $2::timestamptz, 0, 1,
			false, false, convert_to('leased ' || i, 'UTF8'), 'g', 'test', '', '', '' FROM generate_series(1, $1::integer) i`
	countDue = `SELECT count(*) FROM tapestore.runs WHERE place <= clock_timestamp()`
)

var dueNow = runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 20}

// Every way to grant a lease sets the place of its run to the expiry, a renewal does not change it,
// and every way to end the grant resets it.
func TestPlaceOfEveryGrant(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	conn := connect(t, address)
	spec := func(owner runstore.Owner) runstore.LeaseSpec {
		return runstore.LeaseSpec{Owner: owner, TTL: time.Minute}
	}
	var lease runstore.Lease
	check := func(what, place string) {
		t.Helper()
		if !get[bool](t, conn, `SELECT place = `+place+` FROM tapestore.runs`) {
			t.Errorf("%s: the place is not %s", what, place)
		}
	}
	acquire := func(what string, req runstore.AcquireRequest) {
		t.Helper()
		req.Run, req.LeaseSpec = "run", spec(runstore.Owner(what))
		granted, err := s.AcquireLease(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		lease = granted.Lease
		check(what, "expires")
	}
	first := spec("first")
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Runnable: runstore.After(0), Lease: &first})
	if err != nil {
		t.Fatal(err)
	}
	lease = created.Lease
	check("create", "expires")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	check("release", "runnable")
	acquire("acquire", runstore.AcquireRequest{})
	acquire("hand off", runstore.AcquireRequest{Guards: []runstore.Guard{lease.Fence()}})
	acquire("preempt", runstore.AcquireRequest{Preempt: "test"})
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
		t.Fatal(err)
	}
	check("renewal", "granted + interval '1 minute'")
	b := appending(lease, "last")
	b.Release = true
	commit(t, s, b)
	check("commit that releases", "runnable")
	acquire("before a raise", runstore.AcquireRequest{})
	if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	check("raise of the epoch", "runnable")
	b = runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Purge = true
	commit(t, s, b)
	if !get[bool](t, conn, `SELECT place IS NULL FROM tapestore.runs`) {
		t.Error("a purged run has a place")
	}
}

// A scan reads no entry of a live lease, however many there are.
func TestScanReadsNoLiveLease(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	conn := session(t, address, s)
	for i := range 5 {
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: runstore.RunID(fmt.Sprint(i)), Runnable: runstore.After(0)}); err != nil {
			t.Fatal(err)
		}
	}
	sql, args, err := postgres.ScanOf(dueNow)
	if err != nil {
		t.Fatal(err)
	}
	cost := func() (blocks int) {
		exec(t, conn, "VACUUM ANALYZE tapestore.runs")
		p := explain(t, conn, ", ANALYZE, BUFFERS", sql, args...)
		if p.Rows != 5 {
			t.Errorf("a page of %v entries, want 5", p.Rows)
		}
		p.each(func(p plan) {
			if p.Relation == "runs" && (p.Rows != 5 || p.Removed > 0 || p.Index != "runs_runnable") {
				t.Errorf("%s of %s reads %v runs and removes %v, want 5 and 0", p.Node, p.Index, p.Rows, p.Removed)
			}
		})
		return p.Hit + p.Read
	}
	without := cost()
	exec(t, conn, fillLeased, 10_000, time.Now().Add(time.Hour))
	with := cost()
	t.Logf("%d blocks, and %d with 10,000 live leases", without, with)
	if with > without+10 { // the indexes are higher
		t.Errorf("a scan touches %d blocks with 10,000 live leases, %d without", with, without)
	}
}

// A scan moves the renewed leases that it passes over, in the background, and neither waits for
// a row that is locked nor leaves it out for good.
func TestScansMovePlaces(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	conn, other := connect(t, address), connect(t, address)
	const runs = 600 // some statements
	exec(t, conn, fillLeased, runs, time.Now().Add(-time.Minute))
	exec(t, other, "BEGIN")
	exec(t, other, `SELECT FROM tapestore.runs WHERE id = 'leased 7' FOR NO KEY UPDATE`)
	scan := func() {
		t.Helper()
		if found, err := s.ScanIndex(t.Context(), dueNow); err != nil || len(found) != 0 {
			t.Fatalf("got %+v, %v, want no entries", found, err)
		}
	}
	left := func(n int) {
		t.Helper()
		await(t, fmt.Sprintf("%d due places of live leases", n), func() bool {
			scan()
			return get[int](t, conn, countDue) == n
		})
	}
	left(1)
	exec(t, other, "ROLLBACK")
	left(0)
	if n := get[int](t, conn, `SELECT count(*) FROM tapestore.runs WHERE place = expires`); n != runs {
		t.Errorf("%d runs are placed at the expiry of their leases, want %d", n, runs)
	}
}

// A crash of the server may lose a move. The next scan skips the run again, and the handle moves it
// again.
func TestMoveThatACrashLoses(t *testing.T) {
	t.Parallel()
	// A move waits for no disk: the server writes its log after this delay, unless another
	// transaction makes it write the log earlier.
	own := ownServer(t, &postgresemulator.Options{Settings: map[string]string{"wal_writer_delay": "10s"}})
	address := engines.NewPostgresDatabase(t, own)
	s := open(t, address, quiet)
	conn := connect(t, address)
	exec(t, conn, fillLeased, 1, time.Now().Add(-time.Minute))
	moved := func() {
		t.Helper()
		await(t, "the place to be moved", func() bool {
			if found, err := s.ScanIndex(t.Context(), dueNow); err != nil || len(found) != 0 {
				t.Fatalf("got %+v, %v, want no entries", found, err)
			}
			return get[int](t, conn, countDue) == 0
		})
	}
	moved()
	if err := errors.Join(own.Kill(), own.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	conn = connect(t, address)
	t.Logf("the crash has lost the move: %t", get[int](t, conn, countDue) == 1)
	moved()
}
