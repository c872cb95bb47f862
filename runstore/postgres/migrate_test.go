package postgres_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

const schemaVersion = `SELECT max(version) FROM tapestore.migrations`

// What was stored under the first version of the schema is there under the last, step by step and at once.
func TestMigrateFromTheFirstVersion(t *testing.T) {
	t.Parallel()
	last := postgres.Migrations()
	for name, versions := range map[string][]int{"step by step": {1, 2, 3, 4, 5, 6, 7, last}, "at once": {1, last}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			migrateThrough(t, versions)
		})
	}
}

func migrateThrough(t *testing.T, versions []int) {
	address := emptyDatabase(t)
	conn := connect(t, address)
	for _, version := range versions {
		if err := postgres.MigrateTo(t.Context(), conn, version); err != nil {
			t.Fatalf("to version %d: %v", version, err)
		}
		if got := get[int](t, conn, schemaVersion); got != version {
			t.Fatalf("got version %d, want %d", got, version)
		}
		if version == 1 {
			exec(t, conn, `INSERT INTO tapestore.runs (last_seq, last_position, token, version_floor, batches, created, runnable, expires, status,
					grant_state, purged, is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
				VALUES (1, 16384, 7, 0, 0, '2026-01-01Z', '2026-01-02Z', '2026-01-03Z', 4, 2, false, false, 'run', 'grant', 'owner', 'agent', '', '')`)
			exec(t, conn, `INSERT INTO tapestore.events (run, seq, position, token, time, kind, owner, data)
				SELECT no, 1, 16384, 7, '2026-01-01Z', 'test', 'owner', 'event' FROM tapestore.runs`)
			exec(t, conn, `INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, places, key, value)
				SELECT no, 3, 1, 1, '2026-01-01Z', '2026-01-01Z', 1, 'run', 'summary' FROM tapestore.runs`)
			exec(t, conn, `INSERT INTO tapestore.places (at, written, run, name, key)
				SELECT '2026-01-04Z', '2026-01-01Z', no, 'queue', 'run' FROM tapestore.runs`)
			exec(t, conn, `INSERT INTO tapestore.runs (last_seq, token, version_floor, batches, created, runnable, expires, status,
					grant_state, purged, is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
				VALUES (0, 1, 0, 0, '2026-01-01Z', '2026-01-02Z', '2036-01-03Z', 4, 1, false, false, 'leased', 'grant', 'owner', 'agent', '', '')`)
		}
	}
	s := open(t, with(address, "migrate=no"))
	run, err := s.GetRun(t.Context(), "run")
	if err != nil || run.Token != 7 || run.Status != 4 || run.LastSeq != 1 || string(run.Summary.Value) != "summary" || run.Summary.Version != 3 ||
		!run.RunnableAt.Equal(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("got run %+v, %v", run, err)
	}
	runnable, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRunnable, Until: runstore.EndOfTime, Limit: 10})
	if err != nil || len(runnable) != 2 || !runnable[0].At.Equal(run.RunnableAt) || !runnable[1].At.Equal(time.Date(2036, 1, 3, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("got runnable %+v, %v, want the free run at its time and the leased one at the expiry", runnable, err)
	}
	events, err := s.ReadJournal(t.Context(), "run", 1, 10)
	if err != nil || len(events) != 1 || string(events[0].Data) != "event" {
		t.Errorf("got events %+v, %v", events, err)
	}
	entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10})
	if err != nil || len(entries) != 1 || entries[0].Run != "run" {
		t.Errorf("got entries %+v, %v", entries, err)
	}
	late := func() {
		t.Helper()
		_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "late", TTL: time.Minute, Grant: "grant"}, Preempt: "late",
		})
		if !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("an acquire with the id of the first version's grant: got error %v, want ErrFenced", err)
		}
	}
	late()
	lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}})
	if err != nil || lease.Token != 8 {
		t.Fatalf("got lease %+v, %v, want token 8", lease, err)
	}
	late()
	if done := commit(t, s, appending(lease.Lease, "next")); done.FirstSeq != 2 {
		t.Errorf("got %+v, want seq 2", done)
	}
}

// Ten replicas that start at once on an empty database share one schema.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			<-start
			s, err := tryOpen(t, with(address, "pool_max_conns=2"))
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: runstore.RunID(fmt.Sprint(i))}); err != nil {
				t.Errorf("create: %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
	conn := connect(t, address)
	if runs, version := get[int](t, conn, `SELECT count(*) FROM tapestore.runs`), get[int](t, conn, schemaVersion); runs != 10 || version != postgres.Migrations() {
		t.Errorf("got %d runs and version %d, want 10 and %d", runs, version, postgres.Migrations())
	}
	if rows := get[int](t, conn, `SELECT count(*) FROM tapestore.store`); rows != 1 {
		t.Errorf("got %d rows in store, want 1", rows)
	}
}

// Replicas of this program that start at once on a database of an older version bring it
// up to date together.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	conn := connect(t, address)
	before := postgres.Migrations() - 1
	if err := postgres.MigrateTo(t.Context(), conn, before); err != nil {
		t.Fatalf("to version %d: %v", before, err)
	}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			<-start
			s, err := tryOpen(t, with(address, "pool_max_conns=2"))
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			hold(t, s, runstore.RunID(fmt.Sprint(i)))
		})
	}
	close(start)
	wg.Wait()
	if version := get[int](t, conn, schemaVersion); version != postgres.Migrations() {
		t.Errorf("got version %d, want %d", version, postgres.Migrations())
	}
}

// A migration may rewrite large tables, so statement_timeout does not end it, while lock_timeout bounds its
// waits for other sessions, and it takes all locks before its work.
func TestMigrationMayTakeLong(t *testing.T) {
	t.Parallel()
	for _, pooled := range []string{"pooled=no", "pooled=yes"} {
		t.Run(pooled, func(t *testing.T) {
			t.Parallel()
			address := emptyDatabase(t)
			conn := connect(t, address)
			if err := postgres.MigrateTo(t.Context(), conn, 4); err != nil {
				t.Fatal(err)
			}
			exec(t, conn, `CREATE FUNCTION public.look() RETURNS event_trigger LANGUAGE plpgsql AS $$
				BEGIN
					IF current_setting('statement_timeout') <> '0' OR current_setting('lock_timeout') = '0' THEN
						RAISE 'statement_timeout is %, lock_timeout %', current_setting('statement_timeout'), current_setting('lock_timeout');
					END IF;
					IF 4 <> (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock' AND relation IN
						('tapestore.runs'::regclass, 'tapestore.records'::regclass, 'tapestore.batches'::regclass, 'tapestore.events'::regclass))
					THEN
						RAISE 'the first step begins before all tables are locked';
					END IF;
				END $$`)
			exec(t, conn, `CREATE EVENT TRIGGER look ON ddl_command_start EXECUTE FUNCTION public.look()`)
			if _, err := tryOpen(t, with(address, pooled)); err != nil {
				t.Errorf("the migration failed: %v", err)
			}
		})
	}
}

//go:embed testdata/functions10.sql
var functionsBefore string

// PostgreSQL refuses to replace a function in place whose result or names of parameters change. A step
// drops such functions first. Programs of version 10 that are open still call commit_fenced.
func TestMigrationReplacesTheFunctions(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	conn := connect(t, address)
	if err := postgres.MigrateTo(t.Context(), conn, postgres.Migrations()-1); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), functionsBefore); err != nil {
		t.Fatal(err)
	}
	hold(t, open(t, address), "run")
	if stubs := get[string](t, conn, `SELECT coalesce(string_agg(proname, ', '), 'none') FROM pg_proc
		WHERE pronamespace = 'tapestore'::regnamespace AND prosrc LIKE '%a stub%' AND proname <> 'commit_fenced'`); stubs != "none" {
		t.Errorf("functions of the version before are left: %s", stubs)
	}
}

// While one replica migrates, others wait for it, however long that takes.
func TestMigrationWaitsForAnother(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	conn, watch := connect(t, address), connect(t, address)
	exec(t, conn, `BEGIN`)
	exec(t, conn, `SELECT pg_advisory_xact_lock(hashtextextended('tapestore.migrations', 0))`)
	opened := make(chan error, 1)
	go func() {
		_, err := tryOpen(t, with(address, "lock_timeout=50ms"))
		opened <- err
	}()
	await(t, "an open waits for longer than lock_timeout", func() bool {
		return len(opened) > 0 || get[bool](t, watch, `SELECT coalesce(max(clock_timestamp() - query_start) > '100 ms', false)
			FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`)
	})
	exec(t, conn, `ROLLBACK`)
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// A migration whose connection ends midway has applied nothing, and is repeated as a whole.
func TestMigrationThatLosesItsConnection(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	conn := connect(t, address)
	if err := postgres.MigrateTo(t.Context(), conn, 4); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `CREATE SEQUENCE public.functions`) // a sequence keeps its value when a transaction ends without a commit
	exec(t, conn, `CREATE TABLE public.first (version integer)`)
	exec(t, conn, `CREATE FUNCTION public.cut() RETURNS event_trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO public.first SELECT max(version) FROM tapestore.migrations HAVING NOT EXISTS (SELECT FROM public.first);
			IF tg_tag = 'CREATE FUNCTION' AND nextval('public.functions') = 3 THEN
				PERFORM pg_terminate_backend(pg_backend_pid());
			END IF;
		END $$`)
	exec(t, conn, `CREATE EVENT TRIGGER cut ON ddl_command_start EXECUTE FUNCTION public.cut()`)
	s, err := tryOpen(t, address)
	if err != nil {
		t.Fatalf("the migration failed: %v", err)
	}
	hold(t, s, "run")
	if got := get[int](t, conn, `SELECT version FROM public.first`); got != 4 {
		t.Errorf("the second attempt began at version %d, want 4", got)
	}
	if got := get[int](t, conn, `SELECT last_value FROM public.functions`); got <= 3 {
		t.Errorf("the connection was not cut: %d functions were created", got)
	}
}

// everything returns a description of the whole schema.
func everything(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return get[string](t, conn, `SELECT coalesce(string_agg(relname, ', ' ORDER BY relname), 'nothing')
		FROM pg_class WHERE relnamespace = to_regnamespace('tapestore')`)
}

// A schema that this program may not or cannot use is refused with a message that
// says why, and is left as it was.
func TestSchemaRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		prepare []string
		params  []string
		kind    error
		says    string
	}{
		{"newer than this program", []string{`INSERT INTO tapestore.migrations (version) VALUES (99)`}, nil,
			runstore.ErrUnsupported, `"tapestore" is at version 99, which is newer than this program's`},
		{"none, and migration turned off", []string{`DROP SCHEMA tapestore CASCADE`}, []string{"migrate=no"},
			runstore.ErrUnsupported, `"tapestore" is at version 0, this program needs`},
		{"another's table", []string{`DROP SCHEMA tapestore CASCADE`, `CREATE SCHEMA tapestore`, `CREATE TABLE tapestore.runs (theirs integer)`}, nil,
			runstore.ErrUnavailable, `relation "runs" already exists`},
		{"another's migrations", []string{`DROP SCHEMA tapestore CASCADE`, `CREATE SCHEMA tapestore`, `CREATE TABLE tapestore.migrations (theirs integer)`}, nil,
			runstore.ErrUnavailable, `column "version" does not exist`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			conn := connect(t, address)
			for _, statement := range tc.prepare {
				exec(t, conn, statement)
			}
			before := everything(t, conn)
			_, err := tryOpen(t, with(address, tc.params...))
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %v that says %q", err, tc.kind, tc.says)
			}
			if after := everything(t, conn); after != before {
				t.Errorf("the schema was %s and is %s", before, after)
			}
		})
	}
}

// An empty schema is used: another role may have made it for this one.
func TestEmptySchemaIsUsed(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	exec(t, connect(t, address), `CREATE SCHEMA tapestore`)
	hold(t, open(t, address), "run")
}

// role makes a role of the test's own, which may log in and no more.
func role(t *testing.T, address string) string {
	t.Helper()
	conn := connect(t, address)
	name := "role_" + get[string](t, conn, `SELECT replace(gen_random_uuid()::text, '-', '')`)
	exec(t, conn, "CREATE ROLE "+name+" LOGIN")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.WithoutCancel(t.Context()), address)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
		for _, statement := range []string{"DROP OWNED BY " + name + " CASCADE", "DROP ROLE " + name} {
			if _, err := conn.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
				t.Errorf("%s: %v", statement, err)
			}
		}
	})
	return name
}

// A role that may not create what is missing gets an error with advice.
func TestMigrationWithoutRights(t *testing.T) {
	t.Parallel()
	for _, version := range []int{0, 1} {
		address := emptyDatabase(t)
		conn := connect(t, address)
		if err := postgres.MigrateTo(t.Context(), conn, version); err != nil {
			t.Fatal(err)
		}
		name := role(t, address)
		if version > 0 {
			exec(t, conn, "GRANT USAGE ON SCHEMA tapestore TO "+name)
			exec(t, conn, "GRANT SELECT ON ALL TABLES IN SCHEMA tapestore TO "+name)
		}
		before := everything(t, conn)
		_, err := tryOpen(t, with(address, "user="+name))
		want := fmt.Sprintf(`"tapestore" is at version %d of %d, and this role may not migrate it; open it once as a role that may`, version, postgres.Migrations())
		if !errors.Is(err, runstore.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ErrUnsupported that says %q", err, want)
		}
		if after := everything(t, conn); after != before {
			t.Errorf("the schema was %s and is %s", before, after)
		}
	}
}

// A migration that locks several tables waits for a write that has locked its run, before it locks
// anything that the write needs. Neither is aborted as a deadlock.
func TestMigrationWaitsForAWriteInFlight(t *testing.T) {
	t.Parallel()
	writing := [2]string{`INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data)
			VALUES ($1, 1, 1, 1, 0, clock_timestamp(), 'test', '', '')`, `SELECT FROM tapestore.events WHERE run = $1`}
	granting := [2]string{`SELECT FROM tapestore.runs WHERE no = $1`, `SELECT FROM tapestore.grants WHERE run = $1`}
	for _, tc := range []struct {
		from, to int
		write    [2]string // before and after the migration has begun
	}{{5, 6, writing}, {7, 8, granting}, {3, 8, writing}, {3, 8, granting}} {
		t.Run(fmt.Sprint("from version ", tc.from, " to ", tc.to), func(t *testing.T) {
			t.Parallel()
			address := emptyDatabase(t)
			writer := connect(t, address)
			if err := postgres.MigrateTo(t.Context(), writer, tc.from); err != nil {
				t.Fatal(err)
			}
			exec(t, writer, `INSERT INTO tapestore.runs (last_seq, token, version_floor, batches, created, status, grant_state, purged, is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
				VALUES (0, 0, 0, 0, clock_timestamp(), 0, 0, false, false, 'run', '', '', '', '', '')`)
			exec(t, writer, `BEGIN`)
			no := get[int64](t, writer, `SELECT no FROM tapestore.runs WHERE id = 'run' FOR NO KEY UPDATE`)
			exec(t, writer, tc.write[0], no)
			migrated := make(chan error, 1)
			go func() {
				conn, err := pgx.Connect(t.Context(), address)
				if err == nil {
					err = postgres.MigrateTo(t.Context(), conn, tc.to)
					_ = conn.Close(context.WithoutCancel(t.Context()))
				}
				migrated <- err
			}()
			watch := connect(t, address)
			const waits = `SELECT coalesce(string_agg(relation::regclass::text, ' '), '') FROM pg_locks
				WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
			await(t, "the migration waits", func() bool { return get[string](t, watch, waits) != "" })
			if got := get[string](t, watch, waits); got != "tapestore.runs" {
				t.Errorf("the migration waits for a lock on %s, want tapestore.runs", got)
			}
			exec(t, writer, tc.write[1], no)
			exec(t, writer, `UPDATE tapestore.runs SET last_seq = 1 WHERE no = $1`, no)
			exec(t, writer, `COMMIT`)
			if err := <-migrated; err != nil {
				t.Error(err)
			}
		})
	}
}

// A store keeps the functions of the migration that it had last, so a program with other functions needs
// another version.
func TestFunctionsChangeWithTheVersion(t *testing.T) {
	t.Parallel()
	const version, want = 11, "7f4925abb5876a27"
	if got := postgres.FunctionsSum(); postgres.Migrations() != version || got != want {
		t.Errorf("version %d has the functions %s, want those of version %d, %s: add a step to the schema, store the functions of version %d in testdata, then correct the numbers here",
			postgres.Migrations(), got, version, want, version)
	}
}
