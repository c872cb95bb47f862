//go:build unix

package alloydb_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
)

// replicating starts a primary and a standby of it. Their timeouts are PostgreSQL's own,
// of a minute: on a machine that is busy a shorter one ends the copy or the replication.
func replicating(t *testing.T) (primary, standby *postgresemulator.Server) {
	t.Helper()
	program, err := exec.LookPath("pg_basebackup")
	if err != nil {
		t.Skip("not applicable: there is no pg_basebackup on the search path")
	}
	settings := map[string]string{"wal_level": "replica", "max_wal_senders": "4", "autovacuum": "off"} // so that an idle primary commits nothing
	dir, err := os.MkdirTemp("/tmp", "tapestore-standby-")                                             // where a server's own user can enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	start := func(name string) *postgresemulator.Server {
		s, err := postgresemulator.Start(t.Context(), &postgresemulator.Options{Settings: settings, Dir: filepath.Join(dir, name)})
		emulators.Require(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	primary = start("primary")
	if primary.Engine().Tier != emulators.TierLocal {
		t.Skip("not applicable: the server is not of this machine")
	}
	var owner syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "primary", "data"), &owner); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "standby"), 0o755); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "standby", "data")
	if out, err := exec.CommandContext(t.Context(), program, "-D", data, "-R", "-c", "fast", "-d", primary.URL()).CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	_ = os.Remove(filepath.Join(data, "postmaster.pid"))
	if err := filepath.WalkDir(filepath.Join(dir, "standby"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || os.Geteuid() != 0 {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	}); err != nil {
		t.Fatal(err)
	}
	return primary, start("standby")
}

// replica is a standby that a test looks at from outside.
type replica struct {
	t    *testing.T
	conn *pgx.Conn
}

// ask returns the one value that a statement yields on a server.
func ask[V any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (value V) {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err == nil {
		value, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[V])
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// now returns the time on the standby's clock, which is also the primary's.
func (r replica) now() time.Time { return ask[time.Time](r.t, r.conn, "SELECT clock_timestamp()") }

// sinceReplay returns how long ago the last transaction was committed that was replayed.
func (r replica) sinceReplay() time.Duration {
	return time.Duration(ask[int64](r.t, r.conn,
		"SELECT (extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000000)::bigint")) * time.Microsecond
}

// lag returns what the adapter takes the standby's lag for.
func (r replica) lag() (lag time.Duration, known bool) {
	r.t.Helper()
	lag, known, err := alloydb.LagOf(r.t.Context(), r.conn)
	if err != nil {
		r.t.Fatalf("lag: %v", err)
	}
	return lag, known
}

// A real standby takes no writes and can be behind. Whether it is read is seen by what
// is read: a journal that lacks the last event comes from there. No step depends on how
// long another takes.
func TestStaleReadsOnStandby(t *testing.T) {
	t.Parallel()
	primary, standby := replicating(t)
	db, err := primary.NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	o := &alloydb.Options{Host: primary.Address(), User: "postgres", Database: db.Name}
	l := begin(t, open(t, o), "run")
	r := replica{t, connect(t, standby.URL())}
	main := connect(t, db.URL)
	written := ask[string](t, main, "SELECT pg_current_wal_insert_lsn()::text")
	waitFor(t, "the standby has the run", func() bool {
		return ask[bool](t, r.conn, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written)
	})
	o.ReadPool = standby.Address()
	store, err := alloydb.OpenWithReadPool(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()

	// From here on the standby replays nothing, at most the rest of what it is at.
	run(t, r.conn, "SELECT pg_wal_replay_pause()")
	b := runstore.NewBatch("run", l.Fence())
	b.Append("step", nil)
	b.Put("record", []byte("on the primary only"))
	if _, err := store.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	begin(t, store, "unheard of")
	waitFor(t, "the standby has received what it does not replay", func() bool {
		return ask[bool](t, r.conn, `SELECT coalesce((SELECT latest_end_lsn > pg_last_wal_replay_lsn()
			AND last_msg_send_time > pg_last_xact_replay_timestamp() FROM pg_stat_wal_receiver), false)`)
	})
	journal := func(id runstore.RunID, bound time.Duration) int {
		t.Helper()
		events, err := store.ReadJournalStale(t.Context(), id, 1, 100, bound)
		if err != nil {
			t.Fatalf("stale journal of %q: %v", id, err)
		}
		for _, e := range events {
			if e.Position != 0 {
				t.Errorf("event %d of %q has the position %d, want none", e.Seq, id, e.Position)
			}
		}
		return len(events)
	}
	candidates := func(bound time.Duration) int {
		t.Helper()
		found, err := store.ScanIndexStale(t.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 10}, bound)
		if err != nil {
			t.Fatalf("stale scan: %v", err)
		}
		return len(found)
	}
	waitFor(t, "a stale journal is read from the standby, which has 1 of 2 events", func() bool { return journal("run", time.Hour) == 1 })
	waitFor(t, "a stale scan is read from the standby, which has 1 of 2 runs", func() bool { return candidates(time.Hour) == 1 })

	head, err := store.GetRun(t.Context(), "run")
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[time.Time]int{head.CreatedAt: 1, head.CreatedAt.Add(runstore.TimePrecision): 0} {
		for _, newest := range []bool{false, true} {
			q := runstore.IndexQuery{Index: runstore.IndexRuns, From: from, Heads: true, Newest: newest, Limit: 10}
			what := fmt.Sprintf("a stale scan from %v, newest first: %v, is read from the standby, which has %d runs", from, newest, want)
			waitFor(t, what, func() bool {
				found, err := store.ScanIndexStale(t.Context(), q, time.Hour)
				if err != nil {
					t.Fatalf("stale scan: %v", err)
				}
				return len(found) == want // the primary, which is read if the standby answers late, has one more
			})
		}
	}

	replaysNothing(t, r, journal, candidates)
	if got := journal("unheard of", time.Hour); got != 1 {
		t.Errorf("a run that the standby does not know yet: got %d events, want the one that the primary has", got)
	}
	if _, err := store.ReadJournalStale(t.Context(), "nowhere", 1, 100, time.Hour); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("a run that there is nowhere: got error %v, want ErrNotFound", err)
	}
	readsOfThePrimary(t, store)

	run(t, r.conn, "SELECT pg_wal_replay_resume()")
	waitFor(t, "the standby has caught up", func() bool { return journal("run", time.Hour) == 2 })
	currentOrCutOff(t, r, primary, main)
}

// replaysNothing: a standby that receives and does not replay is as far behind as what
// it has replayed, however lately it heard from the primary.
func replaysNothing(t *testing.T, r replica, journal func(runstore.RunID, time.Duration) int, candidates func(time.Duration) int) {
	t.Helper()
	least := r.sinceReplay()
	if lag, known := r.lag(); known && lag < least {
		t.Errorf("a standby that receives and does not replay counts as %v behind, want at least the %v since what it replayed", lag, least)
	}
	bound := least - time.Millisecond
	if got := journal("run", bound); got != 2 {
		t.Errorf("a journal at most %v old: got %d events, want the primary's 2: the standby last replayed something %v ago", bound, got, least)
	}
	if got := candidates(bound); got != 2 {
		t.Errorf("a scan at most %v old: got %d runs, want the primary's 2: the standby last replayed something %v ago", bound, got, least)
	}
}

// readsOfThePrimary: reads that allow no staleness are the primary's, while the read pool
// lacks an event, a record and a run.
func readsOfThePrimary(t *testing.T, s runstore.RunStore) {
	t.Helper()
	want := func(read string, got int, err error, want int) {
		t.Helper()
		if err != nil || got != want {
			t.Errorf("%s: got %d, %v, want the primary's %d: the read pool is behind and must not be asked", read, got, err, want)
		}
	}
	head, err := s.GetRun(t.Context(), "run")
	want("GetRun, last seq", int(head.LastSeq), err, 2)
	other, err := s.GetRun(t.Context(), "unheard of")
	want("GetRun of a new run, last seq", int(other.LastSeq), err, 1)
	events, err := s.ReadJournal(t.Context(), "run", 1, 100)
	want("ReadJournal, events", len(events), err, 2)
	records, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"record"}})
	want("ReadRecords, records", len(records), err, 1)
	entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 10})
	want("ScanIndex, runs", len(entries), err, 2)
	waitFor(t, "ReadFeed has the 3 events of the primary, and is not the read pool's, which lacks 2", func() bool {
		feed, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 100})
		if err != nil {
			t.Fatalf("feed: %v", err)
		}
		return len(feed) == 3
	})
}

// currentOrCutOff checks that a standby counts as current after a commit of the primary,
// and that a standby which is cut off does not, although it has replayed all that it received.
func currentOrCutOff(t *testing.T, r replica, primary *postgresemulator.Server, main *pgx.Conn) {
	t.Helper()
	before := r.now()
	run(t, main, "SELECT pg_current_xact_id()") // a transaction with an id is written to the log
	waitFor(t, "the standby counts as current after a commit", func() bool {
		now := r.now()
		lag, known := r.lag()
		return known && now.Add(-lag).After(before)
	})
	if err := primary.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := primary.Thaw(); err != nil {
			t.Error(err)
		}
	}()
	for range 3 {
		least := r.sinceReplay()
		if lag, known := r.lag(); !known || lag < least {
			t.Errorf("a standby that hears nothing counts as %v behind (known: %t), want at least the %v since the last commit", lag, known, least)
		}
	}
}

func run(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
