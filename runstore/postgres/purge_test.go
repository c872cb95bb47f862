package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// leavings counts the rows of runs that are purged.
const leavings = `SELECT (SELECT count(*) FROM tapestore.garbage) + sum(n) FROM (
	SELECT count(*) AS n FROM tapestore.events WHERE run NOT IN (SELECT no FROM tapestore.runs)
	UNION ALL SELECT count(*) FROM tapestore.records WHERE run NOT IN (SELECT no FROM tapestore.runs)
	UNION ALL SELECT count(*) FROM tapestore.places WHERE run NOT IN (SELECT no FROM tapestore.runs)
	UNION ALL SELECT count(*) FROM tapestore.batches WHERE run NOT IN (SELECT no FROM tapestore.runs)) AS each`

// purgeable makes a run of n events and n records in a queue, which takes several steps to collect.
func purgeable(t *testing.T, s *postgres.Store, conn *pgx.Conn, id runstore.RunID, n int) runstore.Lease {
	t.Helper()
	lease := hold(t, s, id)
	b := appending(lease, "event")
	b.ID = "batch"
	commit(t, s, b)
	exec(t, conn, `INSERT INTO tapestore.events (run, seq, position, token, time, kind, owner, data)
		SELECT no, seq, last_position + seq - 1, token, created, 'test', owner, 'old' FROM tapestore.runs, generate_series(2, $2::bigint) AS seq WHERE id = $1`, []byte(id), n)
	exec(t, conn, `UPDATE tapestore.runs SET last_position = last_position + $2::bigint - 1, last_seq = $2::bigint WHERE id = $1`, []byte(id), n)
	exec(t, conn, `INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, places, key, value)
		SELECT no, 1, 1, 1, created, created, 1, 'key' || int4send(i), 'old' FROM tapestore.runs, generate_series(1, $2::integer) AS i WHERE id = $1`, []byte(id), n)
	exec(t, conn, `INSERT INTO tapestore.places (at, written, run, name, key)
		SELECT created, created, no, 'queue', 'key' || int4send(i) FROM tapestore.runs, generate_series(1, $2::integer) AS i WHERE id = $1`, []byte(id), n)
	return lease
}

func purge(t *testing.T, s *postgres.Store, id runstore.RunID) {
	t.Helper()
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Purge = true
	commit(t, s, b)
}

// anew creates a run that was purged, under a lease.
func anew(t *testing.T, s *postgres.Store, id runstore.RunID) runstore.Lease {
	t.Helper()
	made, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "next", TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	return made.Lease
}

// withoutCollecting does f while no step can be made.
func withoutCollecting(t *testing.T, conn *pgx.Conn, f func()) {
	t.Helper()
	exec(t, conn, `ALTER FUNCTION tapestore.collect RENAME TO hidden`)
	f()
	exec(t, conn, `ALTER FUNCTION tapestore.hidden RENAME TO collect`)
}

// purgeOnly purges a run with a handle that is closed while no step can be made.
func purgeOnly(t *testing.T, address string, id runstore.RunID) {
	t.Helper()
	s := open(t, address)
	purge(t, s, id)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A purge that returns has left nothing, however many steps it took.
func TestPurgeLeavesNothing(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	purgeable(t, s, conn, "large", 5001)
	commit(t, s, appending(hold(t, s, "small"), "event"))
	keep := get[int](t, conn, leavings)
	for _, id := range []runstore.RunID{"large", "small"} {
		purge(t, s, id)
		if n := get[int](t, conn, leavings); n != keep {
			t.Errorf("purge of %q: %d rows are left", id, n)
		}
	}
	purgeable(t, s, conn, "one of two", 5001)
	batches := []runstore.Batch{runstore.NewBatch("one of two", runstore.Unguarded("test")), appending(hold(t, s, "kept"), "event")}
	batches[0].Purge = true
	if _, err := s.CommitMulti(t.Context(), batches); err != nil {
		t.Fatal(err)
	}
	if n := get[int](t, conn, leavings); n != keep {
		t.Errorf("purge in a commit over two runs: %d rows are left", n)
	}
}

// What a purge could not collect is not to be seen, neither by readers nor by the run that is
// made anew, and the next handle collects it.
func TestPurgeIsCollectedLater(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	lease := purgeable(t, s, conn, "run", 5000)
	last := get[int64](t, conn, `SELECT last_position FROM tapestore.runs WHERE id = 'run'`)
	exec(t, conn, `INSERT INTO tapestore.places (at, written, run, name, key) SELECT at + interval '1 day', written, run, name, key FROM tapestore.places`)
	withoutCollecting(t, conn, func() {
		purgeOnly(t, address, "run")
		if n := get[int](t, conn, leavings); n < 15_000 {
			t.Fatalf("%d rows are left, want those of 5,000 events and records", n)
		}
		again := anew(t, s, "run")
		if again.Token != lease.Token+1 {
			t.Errorf("token of the run made anew: %d, want %d", again.Token, lease.Token+1)
		}
		b := appending(again, "new")
		b.ID = "batch" // which the purged run knew
		b.Require(runstore.AtVersion("key", 0))
		b.Put("key", []byte("new"), runstore.Place{Index: "queue", At: runstore.After(0)})
		if done := commit(t, s, b); done.FirstSeq != 1 || done.Replayed || done.Versions[0] <= 1 {
			t.Errorf("a batch of the run made anew: %+v, want seq 1 and a version above those of before", done)
		}
		for _, limit := range []int{1, 10} {
			for i := range 4 {
				q := runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: limit, Heads: i&1 > 0, Newest: i&2 > 0}
				entries, err := s.ScanIndex(t.Context(), q)
				if err != nil || len(entries) != 1 || string(entries[0].Record.Value) != "new" {
					t.Errorf("the queue by %+v: %+v, %v; want the entry of the run made anew", q, entries, err)
				}
			}
			events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: limit})
			if err != nil || len(events) != 1 || string(events[0].Data) != "new" || int64(events[0].Position) <= last {
				t.Errorf("the feed with limit %d: %+v, %v; want the event of the run made anew", limit, events, err)
			}
		}
	})
	// One step is lost with its connection, and made again.
	tx, err := connect(t, address).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !get[bool](t, tx, `SELECT tapestore.collect(NULL, 2000)`) {
		t.Error("the first of several steps is the last")
	}
	session := get[int](t, tx, `SELECT pg_backend_pid()`)
	if err := tx.Conn().Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the lost session, which has the run", func() bool {
		return get[int](t, conn, fmt.Sprint(`SELECT count(*) FROM pg_stat_activity WHERE pid = `, session)) == 0
	})
	open(t, address)
	await(t, "the garbage to be collected", func() bool { return get[int](t, conn, leavings) == 0 })
	events, err := s.ReadJournal(t.Context(), "run", 1, 10)
	if err != nil || len(events) != 1 {
		t.Errorf("the run made anew has %d events, %v; want 1", len(events), err)
	}
}

// A commit over several runs whose purge could not be collected is applied, and returns no error. A
// later purge collects the garbage.
func TestPurgeOverSeveralRunsIsCollectedLater(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	multi := open(t, address)
	purgeable(t, s, conn, "purged", 10)
	kept := hold(t, s, "kept")
	batches := []runstore.Batch{runstore.NewBatch("purged", runstore.Unguarded("test")), appending(kept, "event")}
	batches[0].Purge = true
	withoutCollecting(t, conn, func() {
		done, err := multi.CommitMulti(t.Context(), batches)
		_ = multi.Close()
		if err != nil || len(done) != 2 || done[1].LastSeq != 1 {
			t.Errorf("a purge that was applied and could not be collected: got %+v, %v, want two results", done, err)
		}
		if n := get[int](t, conn, leavings); n < 30 {
			t.Errorf("%d rows are left, want those of 10 events and records", n)
		}
	})
	if run, err := s.GetRun(t.Context(), "purged"); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("the purged run: got %+v, %v, want ErrNotFound", run, err)
	}
	wantJournal(t, s, "kept", "event")
	purge(t, s, "kept")
	if n := get[int](t, conn, leavings); n != 0 {
		t.Errorf("after a later purge %d rows are left", n)
	}
}

// endsContext ends a context when a collecting step begins, and counts how often a handle looks for garbage
// that is left.
type endsContext struct {
	end   atomic.Pointer[context.CancelFunc]
	looks atomic.Int64
}

func (e *endsContext) through(config *pgxpool.Config, _ *postgres.Options) {
	config.ConnConfig.Tracer = e
}

// TraceQueryStart implements pgx.QueryTracer.
func (e *endsContext) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "tapestore.collect(") {
		if end := e.end.Swap(nil); end != nil {
			(*end)()
		}
	}
	if strings.Contains(data.SQL, "EXISTS (SELECT FROM tapestore.garbage)") {
		e.looks.Add(1)
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (e *endsContext) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// What a purge has not collected when its context ends is collected in the background, also what another
// session had locked at that time.
func TestPurgeIsCollectedAfterItsContext(t *testing.T) {
	t.Parallel()
	address := database(t)
	e := &endsContext{}
	s, conn := open(t, address, e.through), connect(t, address)
	purgeable(t, s, conn, "locked", 10)
	purgeable(t, s, conn, "run", 5000)
	withoutCollecting(t, conn, func() { purgeOnly(t, address, "locked") })
	tx, err := connect(t, address).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	get[bool](t, tx, `SELECT tapestore.collect('locked', 1)`)

	ctx, end := context.WithCancel(t.Context())
	defer end()
	e.end.Store(&end)
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Purge = true
	if _, err := s.Commit(ctx, b); err != nil || ctx.Err() == nil {
		t.Fatalf("got %v and the context's %v, want a purge that is applied before its context ends", err, ctx.Err())
	}
	await(t, "the garbage to be collected, without what is locked", func() bool {
		return e.looks.Load() > 0 && get[int](t, conn, `SELECT count(*) FROM tapestore.garbage WHERE id = 'run'`) == 0
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "all garbage to be collected", func() bool { return get[int](t, conn, leavings) == 0 })
}

// A step that the server cancels, because it takes longer than statement_timeout, is made with fewer rows,
// both by the caller that purges and by the next handle.
func TestPurgeInSmallerSteps(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	exec(t, conn, `CREATE FUNCTION tapestore.cancel() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM gone) > 300 THEN RAISE 'canceling statement' USING ERRCODE = 'query_canceled'; END IF; RETURN NULL; END $$`)
	for _, table := range []string{"events", "records"} {
		exec(t, conn, `CREATE TRIGGER cancel AFTER DELETE ON tapestore.`+table+` REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION tapestore.cancel()`)
	}
	purgeable(t, s, conn, "purged", 2500)
	purge(t, s, "purged")
	if n := get[int](t, conn, leavings); n != 0 {
		t.Fatalf("%d rows are left", n)
	}

	purgeable(t, s, conn, "left", 2500)
	withoutCollecting(t, conn, func() { purgeOnly(t, address, "left") })
	if n := get[int](t, conn, leavings); n < 7500 {
		t.Fatalf("%d rows are left, want those of 2,500 events and records", n)
	}
	open(t, address)
	await(t, "the garbage to be collected", func() bool { return get[int](t, conn, leavings) == 0 })
}

// While a step holds its locks, nothing waits for it: no heartbeat or commit of another run, no
// creation of the purged run, no next purge; and the feed goes on.
func TestNothingWaitsForCollecting(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	purgeable(t, s, conn, "run", 5000)
	lease := hold(t, s, "other")
	withoutCollecting(t, conn, func() { purgeOnly(t, address, "run") })
	tx, err := connect(t, address).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	get[bool](t, tx, `SELECT tapestore.collect(NULL, 2000)`)
	exec(t, conn, `SET lock_timeout = '5s'`)
	if get[bool](t, conn, `SELECT tapestore.collect('run', 1)`) {
		t.Error("two steps take the same run")
	}

	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute}); err != nil {
		t.Errorf("heartbeat: %v", err)
	}
	commit(t, s, appending(lease, "of another run"))
	for n := range 2 {
		commit(t, s, appending(anew(t, s, "run"), fmt.Sprint("anew ", n)))
		events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10})
		if err != nil || len(events) != 2 || string(events[1].Data) != fmt.Sprint("anew ", n) {
			t.Errorf("the feed: %+v, %v; want two events, the last one anew", events, err)
		}
		purge(t, s, "run")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	purge(t, s, "other") // which collects for others too
	open(t, address)
	await(t, "the garbage to be collected", func() bool { return get[int](t, conn, leavings) == 0 })
}
