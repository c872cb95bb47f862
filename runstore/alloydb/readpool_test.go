package alloydb_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
)

func TestStaleReads(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	o := options(t, s)
	o.ReadPool = s.ReadPool()
	store := open(t, o)
	reader := store.(runstore.StaleReader)
	l := begin(t, store, "run")
	if err := appendOne(t.Context(), store, l, "2"); err != nil {
		t.Fatal(err)
	}
	opened := s.Stats().ReadPool
	if opened == 0 {
		t.Error("the read pool was not looked at when the store was opened")
	}
	s.CutConnections()
	if err := appendOne(t.Context(), store, l, "3"); err != nil {
		t.Fatal(err)
	}
	if _, err := store.GetRun(t.Context(), "run"); err != nil {
		t.Fatal(err)
	}
	if _, err := store.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.RenewLease(t.Context(), runstore.RenewRequest{Fence: l.Fence(), TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if events, err := store.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(events) != 3 {
		t.Fatalf("read journal: %d events, %v", len(events), err)
	}
	if got := s.Stats().ReadPool; got != opened {
		t.Errorf("%d new connections to the read pool for writes and ordinary reads, want none", got-opened)
	}
	// The first stale read finds its connection cut and is served by the primary; the
	// pool is tried again a moment later.
	waitFor(t, "stale reads make a connection to the read pool", func() bool {
		events, err := reader.ReadJournalStale(t.Context(), "run", 2, 10, 0)
		if err != nil || len(events) != 2 || events[0].Seq != 2 || string(events[1].Data) != "3" {
			t.Fatalf("stale read: %v, %v, want events 2 and 3", events, err)
		}
		for _, e := range events {
			if e.Position != 0 || e.Token != l.Token || e.Owner != "w" {
				t.Fatalf("stale read: %+v, want no position, and the token and owner of the lease", e)
			}
		}
		return s.Stats().ReadPool > opened
	})
}

// A read pool that fails is left alone for a quarter of a second, then for twice as long
// after each further failure, up to 30 seconds, until a read succeeds.
func TestPausesOfAFailingReadPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alloydb.NewReadPoolPauses()
		rests := func(want time.Duration) {
			t.Helper()
			p.Failed(io.ErrUnexpectedEOF)
			time.Sleep(want - time.Nanosecond)
			if !p.Paused() {
				t.Errorf("the read pool is tried again before %v have passed", want)
			}
			time.Sleep(time.Nanosecond)
			if p.Paused() {
				t.Errorf("the read pool is not tried again after %v", want)
			}
		}
		if p.Paused() {
			t.Error("a read pool that never failed is not read")
		}
		for range 2 {
			for pause := 250 * time.Millisecond; pause < 30*time.Second; pause *= 2 {
				rests(pause)
			}
			rests(30 * time.Second)
			rests(30 * time.Second)
			p.Recovered()
		}
	})
}

// shadowed opens a database in which functions of public come before PostgreSQL's of the same name.
// It returns a read of it at a bound, which writes to log, and the database's address.
func shadowed(t *testing.T, log slog.Handler) (create func(functions ...string), read func(bound time.Duration) error, address string) {
	t.Helper()
	address = engines.NewPostgresDatabase(t, standIn(t).Postgres())
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	create = func(functions ...string) {
		t.Helper()
		for _, f := range functions {
			if _, err := pool.Exec(t.Context(), "CREATE OR REPLACE FUNCTION public."+f); err != nil {
				t.Fatal(err)
			}
		}
		const first = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$"
		if _, err := pool.Exec(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		pool.Reset() // the setting is for new connections
	}
	p := alloydb.NewReadPool(pool, false, slog.New(log))
	return create, func(bound time.Duration) error {
		return p.Read(t.Context(), bound, func(context.Context, *pgx.Conn) error { return nil })
	}, address
}

const inRecovery = "pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'"

// at returns the rest of a function that returns a time, by the interval from the node's time.
func at(interval string) string {
	return "RETURNS timestamptz LANGUAGE sql AS $$SELECT timestamptz '2026-01-01 12:00:00Z' + interval '" + interval + "'$$"
}

// TestNodeOfUnknownLagIsNotRead checks that a node of which the lag is unknown is not read
// at any bound. The node is a primary that takes itself for a standby: it has replayed
// nothing and receives nothing.
func TestNodeOfUnknownLagIsNotRead(t *testing.T) {
	t.Parallel()
	create, read, _ := shadowed(t, slog.DiscardHandler)
	if err := read(runstore.MaxTTL); err != nil {
		t.Errorf("a primary: got %v, want that it is read", err)
	}
	create(inRecovery)
	if err := read(runstore.MaxTTL); !errors.Is(err, alloydb.ErrBehind) {
		t.Errorf("a node of unknown lag: got %v, want that it counts as behind", err)
	}
}

// TestMessagesDoNotShortenTheLag checks that the lag of a node depends on what it has replayed, and not
// on the report of its receiver. This report is that of a receiver that starts again every few
// seconds, because the primary has removed the log that the node needs.
func TestMessagesDoNotShortenTheLag(t *testing.T) {
	t.Parallel()
	create, read, address := shadowed(t, slog.DiscardHandler)
	run(t, connect(t, address), `CREATE VIEW public.pg_stat_wal_receiver AS
		SELECT '0/1'::pg_lsn AS latest_end_lsn, timestamptz '2026-01-01 12:00:00Z' AS last_msg_send_time`)
	create(inRecovery, "clock_timestamp() "+at("0"), "pg_last_xact_replay_timestamp() "+at("-1 min"),
		"pg_last_wal_replay_lsn() RETURNS pg_lsn LANGUAGE sql AS $$SELECT '0/1'::pg_lsn$$")
	for bound, want := range map[time.Duration]error{time.Minute - time.Microsecond: alloydb.ErrBehind, time.Minute: nil} {
		if err := read(bound); !errors.Is(err, want) {
			t.Errorf("a node that replayed its last commit a minute ago, bound %v: got %v, want %v", bound, err, want)
		}
	}
}

// TestNodeWithASlowClock checks that a standby is never read at bound 0, because its lag is measured
// with two clocks, that a negative lag sends reads to the primary only if the skew that it shows
// exceeds the bound, and that this is logged, but not for every read.
func TestNodeWithASlowClock(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	create, read, _ := shadowed(t, slog.NewTextHandler(&log, nil))
	create(inRecovery, "clock_timestamp() "+at("0"))
	for _, c := range []struct {
		replayed string // time of the last replayed commit, from the node's time
		bound    time.Duration
		want     error
		logged   int // warnings so far
	}{
		{"5 ms", 0, alloydb.ErrBehind, 0},
		{"5 ms", runstore.MaxTTL, nil, 0},
		{"5 ms", 5 * time.Millisecond, nil, 0},
		{"0", 0, alloydb.ErrBehind, 0},
		{"0", time.Microsecond, nil, 0},
		{"-5 ms", 5 * time.Millisecond, nil, 0},
		{"-5 ms", 5*time.Millisecond - time.Microsecond, alloydb.ErrBehind, 0},
		{"5 ms", 5*time.Millisecond - time.Microsecond, alloydb.ErrBehind, 1},
		{"6 ms", 5 * time.Millisecond, alloydb.ErrBehind, 1},
	} {
		create("pg_last_xact_replay_timestamp() " + at(c.replayed))
		if err := read(c.bound); !errors.Is(err, c.want) {
			t.Errorf("replayed a commit of %s from now, bound %v: got %v, want %v", c.replayed, c.bound, err, c.want)
		}
		if got := strings.Count(log.String(), "level=WARN"); got != c.logged {
			t.Errorf("replayed a commit of %s from now, bound %v: %d warnings so far, want %d:\n%s", c.replayed, c.bound, got, c.logged, &log)
		}
	}
}

// TestReadThatTheCallerGotWrong checks that a malformed cursor does not pause the read pool, which
// responded.
func TestReadThatTheCallerGotWrong(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	o := options(t, s)
	o.ReadPool, o.Params = s.ReadPool(), patientDials
	store, err := alloydb.OpenWithReadPool(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	pool := alloydb.PoolOf(store)
	wrong := runstore.IndexQuery{Index: runstore.IndexRuns, After: "wrong", Limit: 10}
	waitFor(t, "the cursor is refused by the read pool", func() bool {
		err := pool.Read(t.Context(), time.Hour, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := store.ScanIndexOn(ctx, conn, wrong)
			return err
		})
		if !errors.Is(err, runstore.ErrInvalid) { // a machine so busy that the pool did not respond in time
			t.Logf("try again after %v", err)
			return false
		}
		if pool.Paused() {
			t.Error("the read pool is paused after a malformed cursor")
		}
		return true
	})
	if _, err := store.ScanIndexStale(t.Context(), wrong, time.Hour); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("stale scan with a malformed cursor: got %v, want ErrInvalid", err)
	}
}

// TestReadPoolConnectTimeout checks that no dial of the read pool keeps its place among the
// connections for minutes.
func TestReadPoolConnectTimeout(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	for _, c := range []struct {
		params url.Values
		want   time.Duration
	}{
		{nil, 5 * time.Second},
		{patientDials, 300 * time.Second},
	} {
		o := options(t, s)
		o.ReadPool, o.Params = s.ReadPool(), c.params
		store, err := alloydb.OpenWithReadPool(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if got := alloydb.PoolOf(store).ConnectTimeout(); got != c.want {
			t.Errorf("with %v a dial may take %v, want %v", c.params, got, c.want)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestStaleReadErrors(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	o := options(t, s)
	o.ReadPool = s.ReadPool()
	store, err := alloydb.OpenWithReadPool(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, store, "run")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	read := func(ctx context.Context, id runstore.RunID, limit int, bound time.Duration) error {
		_, err := store.ReadJournalStale(ctx, id, 1, limit, bound)
		return err
	}
	for name, c := range map[string]struct{ got, want error }{
		"no such run":    {read(t.Context(), "other", 10, time.Second), runstore.ErrNotFound},
		"no limit":       {read(t.Context(), "run", 0, time.Second), runstore.ErrInvalid},
		"negative bound": {read(t.Context(), "run", 10, -1), runstore.ErrInvalid},
		"context ended":  {read(ended, "run", 10, time.Second), runstore.ErrUnavailable},
		"its cause":      {read(ended, "run", 10, time.Second), context.Canceled},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := read(t.Context(), "run", 10, time.Second); !errors.Is(err, runstore.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
	if err := store.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// A read pool that refuses logins delays reads only a moment: the primary serves them.
func TestStaleReadsWithoutReadPool(t *testing.T) {
	t.Parallel()
	away, there := standIn(t), standIn(t)
	o := options(t, there)
	o.Instance, o.Dialer, o.Host, o.ReadPool = "", nil, there.Postgres().Address(), "127.0.0.1:1"
	store := open(t, o)
	begin(t, store, "run")
	for range 3 {
		if events, err := store.(runstore.StaleReader).ReadJournalStale(t.Context(), "run", 1, 10, time.Hour); err != nil || len(events) != 1 {
			t.Errorf("got %d events, %v, want 1", len(events), err)
		}
	}
	o = options(t, away)
	o.ReadPool = away.ReadPool()
	away.RefuseConnections("nobody")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if s, err := alloydb.OpenWithReadPool(ctx, o); err == nil || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("open without a primary: %v, %v, want the context's end", s, err)
	}
}

// TestStatementFiles checks that each file of the folder sql is used and described. A missing file
// fails every test.
func TestStatementFiles(t *testing.T) {
	t.Parallel()
	for _, fault := range alloydb.StatementFaults() {
		t.Error(fault)
	}
}
