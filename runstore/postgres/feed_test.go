package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// feedOf returns the data of the events that one read of the feed returns.
func feedOf(t *testing.T, s *postgres.Store, limit int) (all []string) {
	t.Helper()
	events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: limit})
	if err != nil {
		t.Fatalf("read feed: %v", err)
	}
	for _, e := range events {
		all = append(all, string(e.Data))
	}
	return all
}

// copyOf makes a copy of a database, in which the tables have the same object ids.
func copyOf(t *testing.T, address string) string {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	db, err := server(t).NewDatabase(t.Context(), config.Database)
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

// TestFeedWaitsForNoStranger checks that a transaction that has no lock on the table of
// runs holds up neither the feed nor a journal, however long it stays open.
func TestFeedWaitsForNoStranger(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	made := open(t, address)
	lease := hold(t, made, "run")
	if err := made.Close(); err != nil { // so that the database can be copied
		t.Fatal(err)
	}
	another := copyOf(t, address)
	s := open(t, address)
	hold(t, open(t, with(address, "schema=other")), "run")
	exec(t, connect(t, address), `CREATE TABLE public.application AS SELECT 1 AS n`)
	var want []string
	for _, stranger := range []struct {
		name, address string
		statements    []string
	}{
		{"of a copy of the database", another, []string{`UPDATE tapestore.runs SET last_seq = last_seq`}},
		{"of another table", address, []string{`UPDATE public.application SET n = n + 1`}},
		{"with a savepoint", address, []string{`SAVEPOINT a`, `UPDATE public.application SET n = n + 1`, `SAVEPOINT b`}},
		{"of another store of the database", address, []string{`UPDATE other.runs SET last_seq = last_seq WHERE id = 'run'`}},
	} {
		conn := connect(t, stranger.address)
		exec(t, conn, `BEGIN`)
		for _, sql := range stranger.statements {
			exec(t, conn, sql)
		}
		event := "beside a transaction " + stranger.name
		commit(t, s, appending(lease, event))
		want = append(want, event)
		if got := feedOf(t, s, runstore.MaxPage); !slices.Equal(got, want) {
			t.Errorf("%s: the feed shows %q, want %q", event, got, want)
		}
		if lag, err := s.FeedLag(t.Context()); err != nil || lag.Events != 0 {
			t.Errorf("%s: the feed's lag is %+v, %v; want none", event, lag, err)
		}
		wantJournal(t, s, "run", want...)
		exec(t, conn, `ROLLBACK`)
	}
}

// TestFeedWaitsForItsWriters checks that a transaction that has a number, and may yet
// append below what was committed since, holds up the feed, and no journal.
func TestFeedWaitsForItsWriters(t *testing.T) {
	t.Parallel()
	for i, begun := range []string{
		`SELECT FROM tapestore.runs WHERE id = 'slow' FOR NO KEY UPDATE`,                 // as a commit over several runs
		`UPDATE tapestore.runs SET expires = expires WHERE id = 'slow'`,                  // as a heartbeat before an append
		`SELECT tapestore.lock_runs(ARRAY['slow']::bytea[], ARRAY[NULL]::bytea[], NULL)`, // that commit itself
		`SELECT count(*), pg_current_xact_id() FROM tapestore.runs`,                      // a lock of any mode counts
	} {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			t.Parallel()
			address := database(t)
			s := open(t, address)
			slow, fast := hold(t, s, "slow"), hold(t, s, "fast")
			commit(t, s, appending(fast, "before"))
			conn := connect(t, with(address, "default_query_exec_mode=exec"))
			exec(t, conn, `BEGIN`)
			exec(t, conn, begun)
			commit(t, s, appending(fast, "later"))
			if got := feedOf(t, s, runstore.MaxPage); !slices.Equal(got, []string{"before"}) {
				t.Errorf("while a writer is open that may append below it, the feed shows %q, want what was before", got)
			}
			newest, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: runstore.MaxPage})
			if err != nil || len(newest) != 1 || string(newest[0].Data) != "before" {
				t.Errorf("meanwhile the newest events are %+v, %v; want what was before", newest, err)
			}
			if lag, err := s.FeedLag(t.Context()); err != nil || lag.Events != 1 {
				t.Errorf("the feed's lag is %+v, %v; want one event", lag, err)
			}
			wantJournal(t, s, "fast", "before", "later")
			sql, args := postgres.StatementOf(s, appending(slow, "first"))
			exec(t, conn, sql, args...)
			exec(t, conn, `COMMIT`)
			if got := feedOf(t, s, runstore.MaxPage); strings.Join(got, " ") != "before first later" {
				t.Errorf("then the feed shows %q, want the slow writer's event before the later one", got)
			}
		})
	}
}

// TestFeedNeverGoesBackwards runs the two statements of a read one by one. The repeatable
// snapshot of its transaction stands for a stranger's end between the second statement's
// snapshot and the rest of that statement: what an earlier read has shown is still shown.
// An append that begins between the statements is waited for.
func TestFeedNeverGoesBackwards(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	slow, fast := hold(t, s, "slow"), hold(t, s, "fast")
	commit(t, s, appending(fast, "before"))
	stranger := connect(t, emptyDatabase(t))
	exec(t, stranger, `BEGIN`)
	exec(t, stranger, `SELECT pg_current_xact_id()`)
	commit(t, s, appending(fast, "shown"))
	if got := feedOf(t, s, runstore.MaxPage); strings.Join(got, " ") != "before shown" {
		t.Fatalf("beside a stranger the feed shows %q, want all", got)
	}

	steps := postgres.Reads(10)
	page := `SELECT coalesce(string_agg(convert_from(data, 'UTF8'), ' ' ORDER BY position), '') FROM (` + steps["feed"] + `) page`
	begin := func(isolation string) func() string {
		reader := connect(t, with(address, "default_query_exec_mode=exec"))
		exec(t, reader, `BEGIN ISOLATION LEVEL `+isolation)
		exec(t, reader, steps["strangers"])
		return func() string { return get[string](t, reader, page, int64(0), int64(runstore.MaxPageBytes)) }
	}
	read := begin("READ COMMITTED")
	writer := connect(t, with(address, "default_query_exec_mode=exec"))
	exec(t, writer, `BEGIN`)
	sql, args := postgres.StatementOf(s, appending(slow, "first"))
	exec(t, writer, sql, args...)
	commit(t, s, appending(fast, "later"))
	if got := read(); got != "before shown" {
		t.Errorf("while an append is open that began between the statements, the feed shows %q, want what was before", got)
	}
	exec(t, writer, `ROLLBACK`)

	// A stranger of another test may end while the first statement looks, which no read of the adapter's
	// meets: its two statements have two snapshots. So one of several reads must show all.
	want, got := "before shown later", ""
	for attempt := 0; got != want && attempt < 5; attempt++ {
		read = begin("REPEATABLE READ")
		exec(t, stranger, `ROLLBACK`)
		if got = read(); got != want {
			exec(t, stranger, `BEGIN`)
			exec(t, stranger, `SELECT pg_current_xact_id()`)
			commit(t, s, appending(fast, "more"))
			want += " more"
		}
	}
	if got != want {
		t.Errorf("after a stranger's end in the middle of a read, the feed shows %q, want all that was shown before, %q", got, want)
	}
}
