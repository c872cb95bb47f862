package alloydb_test

import (
	"context"
	"errors"
	"io"
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

// TestNodeOfUnknownLagIsNotRead checks that a node of which the lag is unknown is not read
// at any bound. The node is a primary that takes itself for a standby: it has replayed
// nothing and receives nothing.
func TestNodeOfUnknownLagIsNotRead(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), engines.NewPostgresDatabase(t, standIn(t).Postgres()))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	read := func() error {
		return alloydb.ReadFrom(t.Context(), pool, runstore.MaxTTL, func(context.Context, *pgx.Conn) error { return nil })
	}
	if err := read(); err != nil {
		t.Errorf("a primary: got %v, want that it is read", err)
	}
	for _, sql := range []string{
		"CREATE FUNCTION public.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
		"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pool.Reset() // the setting is for new connections
	if err := read(); !errors.Is(err, alloydb.ErrBehind) {
		t.Errorf("a node of unknown lag: got %v, want that it counts as behind", err)
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
