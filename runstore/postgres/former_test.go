package postgres_test

import (
	_ "embed"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// formerVersion is the last version of the schema before tapestore.write had its present
// parameters.
const formerVersion = 3

// Statements of the program of that version.
const (
	formerWrite = `SELECT (tapestore.write($1::smallint, 'run', $2::bigint, $3::bytea, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
		$4::bytea, '', 3600000000, false, $5::bytea, NULL, 0, ARRAY['test']::bytea[], ARRAY[$6]::bytea[],
		ARRAY['key']::bytea[], ARRAY['value']::bytea[], ARRAY[0], ARRAY[1], ARRAY['queue']::bytea[], ARRAY['2026-01-01Z']::timestamptz[], ARRAY[NULL]::bigint[],
		0, false, NULL, NULL, false, false, false)).verdict`

	formerFenced = ` WHERE id = $1::bytea AND token = $2::bigint AND grant_id = $3::bytea AND owner = $4::bytea AND grant_state = 1 AND NOT purged`

	formerAppend = `WITH r AS (
			UPDATE tapestore.runs SET last_seq = last_seq + 1, last_position = greatest(last_position + 1, (
				SELECT position_base + ((pg_current_xact_id()::text::bigint - xid_base) << 14) FROM tapestore.store))` +
		formerFenced + ` AND (voided IS NULL OR $5::bigint <> ALL (voided))
			RETURNING no, last_seq, last_position, clock_timestamp() AS now
		), e AS (
			INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data)
			SELECT no, last_seq, last_position, $5::bigint, $2::bigint, now, 'test', $4::bytea, 'appended' FROM r
		)
		SELECT last_seq FROM r`

	formerRenew = `WITH r AS (
			UPDATE tapestore.runs SET expires = greatest(expires, clock_timestamp() + interval '1 hour')` +
		formerFenced + ` AND (voided IS NULL OR $5::bigint <> ALL (voided)) RETURNING last_seq
		)
		SELECT last_seq FROM r`
)

//go:embed testdata/functions3.sql
var formerFunctions string

// formerSchema creates a schema of that version, with the functions that the former program calls.
func formerSchema(t *testing.T, address string) (conn *pgx.Conn) {
	t.Helper()
	conn = connect(t, address)
	if err := postgres.MigrateTo(t.Context(), conn, formerVersion); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), formerFunctions); err != nil {
		t.Fatal(err)
	}
	return conn
}

// formerStore is a database that the former program has filled: a run under a live lease, a
// batch with an id that wrote a record with a place, and events.
func formerStore(t *testing.T) (address string, conn *pgx.Conn) {
	t.Helper()
	address = emptyDatabase(t)
	conn = formerSchema(t, address)
	for i, args := range [][]any{
		{1, 11, nil, []byte("holder"), []byte("grant"), []byte("created")},
		{0, 12, []byte("charge"), nil, nil, []byte("charged")},
	} {
		if verdict := get[int](t, conn, formerWrite, args...); verdict != 1 {
			t.Fatalf("write %d of the former program: got verdict %d, want 1", i, verdict)
		}
	}
	if seq := get[int](t, conn, formerAppend, formerFence(13)...); seq != 3 {
		t.Fatalf("an append of the former program: got seq %d, want 3", seq)
	}
	return address, conn
}

func formerFence(nonce int64) []any {
	return []any{[]byte("run"), int64(1), []byte("grant"), []byte("holder"), nonce}
}

// What the former program stored goes on after the migration: its lease, its results, its
// places, and the feed.
func TestMigrateAFilledStore(t *testing.T) {
	t.Parallel()
	address, conn := formerStore(t)
	last := get[int64](t, conn, `SELECT max(position) FROM tapestore.events`)
	s := open(t, address)
	run, err := s.GetRun(t.Context(), "run")
	if err != nil || run.LastSeq != 3 || run.Token != 1 || run.Holder.Owner != "holder" {
		t.Fatalf("got run %+v, error %v; want one that is held, with 3 events", run, err)
	}
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: time.Minute, Grant: "grant"}})
	if err != nil || !created.New || created.Lease.Token != 1 {
		t.Fatalf("the former creation, repeated: got %+v, error %v; want its lease", created, err)
	}
	fence := created.Lease.Fence()
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: fence, TTL: time.Minute}); err != nil {
		t.Errorf("a renewal of the former lease: %v", err)
	}
	charge := runstore.NewBatch("run", runstore.Unguarded("test"))
	charge.ID = "charge"
	charge.Append("test", []byte("charged"))
	if done := commit(t, s, charge); !done.Replayed || done.FirstSeq != 2 {
		t.Errorf("the former batch, repeated: got %+v, want the first result at seq 2", done)
	}
	entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10})
	if err != nil || len(entries) != 1 || entries[0].Record.Version != 2 {
		t.Errorf("got entries %+v, error %v; want the record at version 2", entries, err)
	}
	commit(t, s, appending(created.Lease, "after"))
	all := feed(t, s, 0, 4)
	var got []string
	for _, e := range all {
		got = append(got, string(e.Data))
	}
	if strings.Join(got, " ") != "created charged appended after" || all[3].Position <= runstore.Position(last) {
		t.Errorf("the feed has %q, the last at %d; want all events in order, the last above %d", got, all[3].Position, last)
	}
	if page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: runstore.Position(last), Limit: 10}); err != nil || len(page) != 1 {
		t.Errorf("behind the former events the feed has %+v, error %v; want the new one", page, err)
	}
	released, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: fence})
	if err != nil || released.LastSeq != 4 {
		t.Errorf("a release of the former lease: got %+v, error %v", released, err)
	}
}

// The former program changed records by creations and acquires that left no other trace. A purge
// after the migration still raises the floor above their versions, so that a claim on a record of
// the purged run matches none of its successor.
func TestPurgeAfterAMigrationKeepsVersionsGrowing(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	conn := formerSchema(t, address)
	withoutEvents := strings.Replace(formerWrite, `ARRAY['test']::bytea[], ARRAY[$6]::bytea[]`, `nullif(ARRAY[$6]::bytea[], ARRAY[$6]::bytea[]), NULL`, 1)
	for i, args := range [][]any{
		{1, 11, nil, []byte("a"), []byte("first grant"), []byte{}},
		{2, 12, nil, []byte("b"), []byte("second grant"), []byte{}},
	} {
		exec(t, conn, `UPDATE tapestore.runs SET expires = '2000-01-01Z'`)
		if verdict := get[int](t, conn, withoutEvents, args...); verdict != 1 {
			t.Fatalf("write %d of the former program: got verdict %d, want 1", i, verdict)
		}
	}
	s := open(t, address)
	records, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"key"}})
	if err != nil || len(records) != 1 || records[0].Version != 2 {
		t.Fatalf("got records %+v, error %v; want one at version 2", records, err)
	}
	purge := runstore.NewBatch("run", runstore.Unguarded("test"))
	purge.Purge = true
	commit(t, s, purge)
	spec := runstore.RunSpec{ID: "run"}
	spec.Writes.Put("key", []byte("anew"))
	created, err := s.CreateRun(t.Context(), spec)
	if err != nil || len(created.Committed.Versions) != 1 || created.Committed.Versions[0] <= 2 {
		t.Errorf("after the purge: got %+v, error %v; want a version above 2", created.Committed, err)
	}
}

// After the migration the server refuses every write of the former program, prepared or
// not: it would neither report progress nor be judged by it.
func TestFormerStatementsAreRefused(t *testing.T) {
	t.Parallel()
	address, former := formerStore(t)
	calls := map[string]struct {
		sql, code string
		args      []any
	}{
		"write":  {formerWrite, "42883", []any{0, 21, nil, nil, nil, []byte("late")}},
		"append": {formerAppend, "42703", formerFence(22)},
		"renew":  {formerRenew, "42703", formerFence(23)},
	}
	for name, call := range calls {
		if _, err := former.Prepare(t.Context(), name, call.sql); err != nil {
			t.Fatal(err)
		}
		if name == "renew" {
			get[int](t, former, name, call.args...)
		}
	}
	open(t, address)
	conn := connect(t, address)
	before := stored(t, conn)
	for name, call := range calls {
		for _, sql := range []string{name, call.sql} {
			_, err := former.Exec(t.Context(), sql, call.args...)
			var server *pgconn.PgError
			if !errors.As(err, &server) || server.Code != call.code {
				t.Errorf("%s: got error %v, want SQLSTATE %s", name, err, call.code)
			}
		}
	}
	if after := stored(t, conn); after != before {
		t.Errorf("the store was\n%s\nand is\n%s", before, after)
	}
}

// A handle whose schema a newer program migrates reports so for its appends and heartbeats too.
func TestAppendAfterANewerMigration(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	lease := hold(t, s, "run")
	commit(t, s, appending(lease, "event"))
	exec(t, conn, `ALTER TABLE tapestore.runs RENAME COLUMN void_nonces TO renamed`)
	exec(t, conn, `INSERT INTO tapestore.migrations (version) VALUES (99)`)
	before := stored(t, conn)
	for what, write := range map[string]func() error{
		"append":  func() error { _, err := s.Commit(t.Context(), appending(lease, "late")); return err },
		"appends": func() error { _, err := s.Commit(t.Context(), appending(lease, "late", "later")); return err },
		"heartbeat": func() error {
			_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute})
			return err
		},
	} {
		if err := write(); !errors.Is(err, runstore.ErrUnsupported) {
			t.Errorf("%s: got error %v, want ErrUnsupported", what, err)
		}
	}
	if after := stored(t, conn); after != before {
		t.Errorf("the store was\n%s\nand is\n%s", before, after)
	}
}

// formerRelease is the release of the program of version 6.
const formerRelease = `UPDATE tapestore.runs SET grant_state = 2, batches = batches + 1
	WHERE id = $1 AND token = 1 AND grant_id = 'grant' AND owner = 'holder' AND grant_state = 1 AND NOT purged
		AND (given_up IS NULL OR 1 <> ALL (given_up)) RETURNING last_seq`

// Version 7 keeps the places of runs, which the server computed before, and refuses the statements
// of the former program, which do not set them.
func TestPlacesOfTheFormerVersion(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	former := connect(t, address)
	if err := postgres.MigrateTo(t.Context(), former, 6); err != nil {
		t.Fatal(err)
	}
	exec(t, former, `INSERT INTO tapestore.runs (last_seq, token, version_floor, batches, created, runnable, expires, indexed_expires, status, grant_state,
			purged, is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
		SELECT 0, 1, 0, 0, clock_timestamp(), clock_timestamp() - interval '1 hour', clock_timestamp() + interval '1 hour', clock_timestamp() + interval '1 hour', 0, 1,
			false, false, id, 'grant', 'holder', '', '', '' FROM unnest('{first,second,third}'::bytea[]) AS id`)
	if _, err := former.Prepare(t.Context(), "release", formerRelease); err != nil {
		t.Fatal(err)
	}
	get[int](t, former, "release", []byte("first"))
	const places = `SELECT string_agg(convert_from(id, 'UTF8') || CASE place WHEN runnable THEN ' runnable' WHEN indexed_expires THEN ' expires' END, ', ' ORDER BY id) FROM tapestore.runs`
	s := open(t, address)
	conn := connect(t, address)
	for _, sql := range []string{"release", formerRelease} {
		_, err := former.Exec(t.Context(), sql, []byte("second"))
		var server *pgconn.PgError
		if !errors.As(err, &server) || server.Code != "42703" {
			t.Errorf("a release of the former program: got error %v, want undefined_column", err)
		}
	}
	if got, want := get[string](t, conn, places), "first runnable, second expires, third expires"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	due, err := s.ScanIndex(t.Context(), dueNow)
	if err != nil || len(due) != 1 || due[0].Run != "first" {
		t.Errorf("got runs %+v, error %v; want the first", due, err)
	}
	second := runstore.Lease{Run: "second", Grant: "grant"}
	second.Owner, second.Token = "holder", 1
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: second.Fence()}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "first", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	if got, want := get[string](t, conn, places), "first expires, second runnable, third expires"; got != want {
		t.Errorf("after a release and a grant: got %q, want %q", got, want)
	}
}
