package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// A raise of the epoch waits for a grant in flight that has read the former epoch, and then ends
// the grant. Until the grant updates its run, its transaction has locked no more of the table than
// a SELECT FOR UPDATE does. A raise that did not wait for that would return before the grant is
// made, and leave it current under a token of the former epoch.
func TestRaiseWaitsForAGrantInFlight(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, with(address, "lock_timeout=30m", "statement_timeout=1h"))
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	watch := connect(t, address)
	release := holdEvents(t, address)
	type grant struct {
		runstore.Granted
		err error
	}
	grants, raises := make(chan grant, 1), make(chan error, 1)
	go func() {
		req := runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "holder", TTL: time.Minute}}
		req.Writes.Append("test", nil)
		granted, err := s.AcquireLease(t.Context(), req)
		grants <- grant{granted, err}
	}()
	awaitLocked(t, address, 1)
	go func() {
		_, err := s.RaiseEpoch(t.Context(), "test")
		raises <- err
	}()
	await(t, "the raise waits or has returned", func() bool {
		return len(raises) > 0 || get[bool](t, watch, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'tapestore.runs'::regclass)`)
	})
	if len(raises) > 0 {
		t.Error("the raise returned before the grant in flight was committed")
	}
	release()
	made := <-grants
	if err := errors.Join(made.err, <-raises); err != nil {
		t.Fatal(err)
	}
	if made.Lease.Token != 1 {
		t.Errorf("got token %d, want 1: the grant was in flight before the raise", made.Lease.Token)
	}
	if run, err := s.GetRun(t.Context(), "run"); err != nil || run.Holder != (runstore.Holder{}) {
		t.Errorf("after the raise: got holder %+v, %v, want none", run.Holder, err)
	}
	if _, err := s.Commit(t.Context(), appending(made.Lease, "zombie")); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("an append under the grant of the former epoch: got %v, want ErrFenced", err)
	}
}

// Reads do not wait for a raise of the epoch. Writes wait for lock_timeout, and fail with nothing
// applied.
func TestReadsGoOnDuringARaise(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, with(address, "lock_timeout=50ms"))
	lease := hold(t, s, "run")
	b := appending(lease, "event")
	b.Put("key", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
	commit(t, s, b)
	other := connect(t, address)
	exec(t, other, "BEGIN")
	exec(t, other, `SELECT tapestore.raise_epoch('test', '', 0, false)`)

	if run, err := s.GetRun(t.Context(), "run"); err != nil || run.LastSeq != 1 || run.Token != lease.Token {
		t.Errorf("the run: got %+v, %v, want seq 1 and token %d", run, err, lease.Token)
	}
	wantJournal(t, s, "run", "event")
	wantFeed(t, s, 1)
	if records, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Prefix: "k", Limit: 10}); err != nil || len(records) != 1 {
		t.Errorf("the records: got %+v, %v, want one", records, err)
	}
	for _, index := range []runstore.IndexName{runstore.IndexRuns, "queue"} {
		entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: 10, Heads: true})
		if err != nil || len(entries) != 1 {
			t.Errorf("index %s: got %+v, %v, want one entry", index, entries, err)
		}
	}
	if _, err := s.Commit(t.Context(), appending(lease, "during the raise")); !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("a commit: got %v, want ErrUnavailable", err)
	}
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute}); !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("a heartbeat: got %v, want ErrUnavailable", err)
	}
	exec(t, other, "ROLLBACK")
	commit(t, s, appending(lease, "after the raise"))
	wantJournal(t, s, "run", "event", "after the raise")
}

// soonSilent makes a handle take its server for silent 1.001 s after it has taken a connection for a statement.
// The server ends no statement.
func soonSilent(config *pgxpool.Config, o *postgres.Options) {
	config.ConnConfig.RuntimeParams["statement_timeout"] = "1h"
	o.StatementTimeout = time.Millisecond
}

// A raise of the epoch changes the row of every leased run. So neither statement_timeout nor the bound for a
// silent server ends it, be it by an operator or by the first handle after a failover. lock_timeout stays.
func TestRaiseOfTheEpochTakesAnyTime(t *testing.T) {
	t.Parallel()
	for _, failover := range []bool{false, true} {
		t.Run(fmt.Sprintf("failover %t", failover), func(t *testing.T) {
			t.Parallel()
			address := database(t)
			raises := &calls{text: "raise_epoch"}
			s, conn, watch := open(t, address, raises.through, soonSilent), connect(t, address), connect(t, address)
			exec(t, conn, `ALTER FUNCTION tapestore.raise_epoch RENAME TO raise_any`)
			exec(t, conn, `CREATE FUNCTION tapestore.raise_epoch(why bytea, new_cluster text, new_timeline bigint, by_itself boolean)
				RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
					IF current_setting('statement_timeout') <> '0' OR current_setting('lock_timeout') = '0' THEN
						RAISE 'statement_timeout is %, lock_timeout %', current_setting('statement_timeout'), current_setting('lock_timeout');
					END IF;
					RETURN tapestore.raise_any(why, new_cluster, new_timeline, by_itself);
				END $$`)
			if failover {
				exec(t, conn, `UPDATE tapestore.store SET timeline = timeline + 1`)
			}
			exec(t, conn, `BEGIN`)
			exec(t, conn, `LOCK TABLE tapestore.runs IN ROW EXCLUSIVE MODE`) // a raise waits for this
			done := make(chan error, 1)
			go func() {
				if failover {
					_, err := tryOpen(t, address, quiet, raises.through, soonSilent)
					done <- err
					return
				}
				_, err := s.RaiseEpoch(t.Context(), "test")
				done <- err
			}()
			await(t, "a raise takes longer than a statement may", func() bool {
				return len(done) > 0 || raises.started.Load() > 1 || get[bool](t, watch, `SELECT coalesce(max(clock_timestamp() - query_start) > '1500 ms', false)
					FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%raise_epoch%'`)
			})
			exec(t, conn, `ROLLBACK`)
			if n := raises.started.Load(); n != 1 {
				t.Fatalf("the raise was begun %d times, want once", n)
			}
			if err := <-done; err != nil {
				t.Errorf("a raise that takes longer than a statement may: %v", err)
			}
		})
	}
}

// A raise that a newer schema refuses returns also if the pool has one connection: it has given the connection back
// before it reads the schema's version.
func TestRefusedRaiseOverOneConnection(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, with(address, "pool_max_conns=1")), connect(t, address)
	exec(t, conn, `ALTER FUNCTION tapestore.raise_epoch RENAME TO renamed`)
	exec(t, conn, `INSERT INTO tapestore.migrations (version) VALUES (99)`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := s.RaiseEpoch(ctx, "test")
		answered <- err
	}()
	await(t, "the refusal", func() bool { return len(answered) > 0 })
	if err := <-answered; !errors.Is(err, runstore.ErrUnsupported) {
		t.Errorf("got error %v, want ErrUnsupported", err)
	}
}
