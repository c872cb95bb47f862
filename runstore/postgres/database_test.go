package postgres_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// database makes an empty store of the test's own and returns its URL.
func database(t testing.TB) string {
	t.Helper()
	return engines.NewPostgresDatabase(t, server(t))
}

// ownServer starts a server of the test's own.
func ownServer(t *testing.T, opts *postgresemulator.Options) *postgresemulator.Server {
	t.Helper()
	if e := server(t).Engine(); e.Tier != emulators.TierLocal {
		t.Skipf("not applicable: only a private server can be stopped and copied, and this is a %s", e.Tier)
	}
	s, err := postgresemulator.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// emptyDatabase makes a database without a store.
func emptyDatabase(t testing.TB) string {
	t.Helper()
	db, err := server(t).NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Drop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return db.URL
}

// with returns a URL with further keys, written key=value.
func with(address string, params ...string) string {
	for _, p := range params {
		separator := "?"
		if strings.Contains(address, "?") {
			separator = "&"
		}
		address += separator + p
	}
	return address
}

// patience is the default of each timeout of a test's handle: no test fails because the machine is slow.
const patience = 30 * time.Minute

// tryOpen opens a handle as its URL says, adjusted by change. Timeouts that neither sets are patience.
func tryOpen(t testing.TB, address string, change ...func(*pgxpool.Config, *postgres.Options)) (*postgres.Store, error) {
	t.Helper()
	u, err := runstore.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	config, opts, err := postgres.ParseURL(u)
	if err != nil {
		return nil, err
	}
	for _, f := range change {
		f(config, opts)
	}
	for _, timeout := range []*time.Duration{&opts.RetryTimeout, &opts.StatementTimeout, &opts.LockTimeout} {
		*timeout = cmp.Or(*timeout, patience)
	}
	s, err := postgres.Open(t.Context(), config, opts)
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

func open(t testing.TB, address string, change ...func(*pgxpool.Config, *postgres.Options)) *postgres.Store {
	t.Helper()
	s, err := tryOpen(t, address, change...)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

// quiet keeps a handle from logging that it raised the epoch.
func quiet(_ *pgxpool.Config, o *postgres.Options) { o.Logger = slog.New(slog.DiscardHandler) }

// connect makes a connection that is not the adapter's.
func connect(t testing.TB, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

type execer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func exec(t testing.TB, conn execer, sql string, args ...any) {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// get returns the one value that a statement yields.
func get[T any](t testing.TB, conn execer, sql string, args ...any) (value T) {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err == nil {
		value, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// await polls until a condition holds. Its bound only ends what would never come.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(2 * time.Minute); !holds(); {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("%s: not within two minutes", what)
		}
	}
}

// awaitLocked waits until n statements of the adapter wait for a lock.
func awaitLocked(t testing.TB, address string, n int) {
	t.Helper()
	watch := connect(t, address)
	await(t, fmt.Sprintf("%d statements that wait for a lock", n), func() bool {
		return get[int](t, watch, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'tapestore'`) >= n
	})
}

// holdEvents makes transactions that append events wait in the middle of their write, until release
// is called.
func holdEvents(t testing.TB, address string) (release func()) {
	t.Helper()
	conn := connect(t, address)
	exec(t, conn, `CREATE FUNCTION tapestore.hold() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END $$`)
	exec(t, conn, `CREATE TRIGGER hold BEFORE INSERT ON tapestore.events FOR EACH ROW EXECUTE FUNCTION tapestore.hold()`)
	exec(t, conn, "SELECT pg_advisory_lock(1)")
	return func() {
		_, _ = conn.Exec(context.WithoutCancel(t.Context()), "SELECT pg_advisory_unlock(1)") // if it fails, the writes fail
	}
}

// stored returns everything in the store except the voided nonces.
func stored(t testing.TB, conn execer) string {
	t.Helper()
	var all []string
	for _, table := range []string{"runs", "events", "records", "places", "batches", "store", "epochs"} {
		all = append(all, table, get[string](t, conn,
			`SELECT coalesce(string_agg(row, E'\n' ORDER BY row), '') FROM (SELECT (to_jsonb(t) - 'void_nonces')::text AS row FROM tapestore.`+table+` t) rows`))
	}
	return strings.Join(all, "\n")
}

// hold creates a run and takes its lease.
func hold(t testing.TB, s *postgres.Store, id runstore.RunID) runstore.Lease {
	t.Helper()
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{
		ID: id, Lease: &runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, Grant: "grant-" + runstore.GrantID(id)},
	})
	if err != nil {
		t.Fatalf("create %s: %v", id, err)
	}
	return created.Lease
}

// appending is a batch of events under a lease.
func appending(l runstore.Lease, payloads ...string) runstore.Batch {
	b := runstore.NewBatch(l.Run, l.Fence())
	for _, p := range payloads {
		b.Append("test", []byte(p))
	}
	return b
}

func commit(t testing.TB, s *postgres.Store, b runstore.Batch) runstore.Committed {
	t.Helper()
	done, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	return done
}
