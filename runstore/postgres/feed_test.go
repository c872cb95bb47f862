package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// feedOf returns the data of all events that the feed shows.
func feedOf(t *testing.T, s *postgres.Store) (all []string) {
	t.Helper()
	events, err := s.ReadFeed(t.Context(), 0, runstore.MaxPage)
	if err != nil {
		t.Fatalf("read feed: %v", err)
	}
	for _, e := range events {
		all = append(all, string(e.Data))
	}
	return all
}

// A transaction that writes no run of this store holds up neither the feed nor a
// journal, however long it stays open.
func TestFeedWaitsForNoStranger(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	other := with(address, "schema=other")
	hold(t, open(t, other), "run")
	lease := hold(t, s, "run")
	exec(t, connect(t, address), `CREATE TABLE public.application AS SELECT 1 AS n`)
	var want []string
	for _, stranger := range []struct {
		name, address string
		statements    []string
	}{
		{"of another database", emptyDatabase(t), []string{`CREATE TABLE public.theirs (n int)`}},
		{"of another table", address, []string{`UPDATE public.application SET n = n + 1`}},
		{"that has read the store", address, []string{`SELECT count(*) FROM tapestore.runs, tapestore.events`, `SELECT pg_current_xact_id()`}},
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
		if got := feedOf(t, s); !slices.Equal(got, want) {
			t.Errorf("%s: the feed shows %q, want %q", event, got, want)
		}
		if lag, err := s.FeedLag(t.Context()); err != nil || lag.Events != 0 {
			t.Errorf("%s: the feed's lag is %+v, %v; want none", event, lag, err)
		}
		wantJournal(t, s, "run", want...)
		exec(t, conn, `ROLLBACK`)
	}
}

// A transaction that has a number, and may yet append below what was committed since,
// holds up the feed, and no journal: whatever it has done to the store so far.
func TestFeedWaitsForItsWriters(t *testing.T) {
	t.Parallel()
	for i, begun := range []string{
		`SELECT FROM tapestore.runs WHERE id = 'slow' FOR NO KEY UPDATE`,                 // as a commit over several runs
		`UPDATE tapestore.runs SET expires = expires WHERE id = 'slow'`,                  // as a heartbeat before an append
		`SELECT tapestore.lock_runs(ARRAY['slow']::bytea[], ARRAY[NULL]::bytea[], NULL)`, // that commit itself
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
			if got := feedOf(t, s); !slices.Equal(got, []string{"before"}) {
				t.Errorf("while a writer is open that may append below it, the feed shows %q, want what was before", got)
			}
			if lag, err := s.FeedLag(t.Context()); err != nil || lag.Events != 1 {
				t.Errorf("the feed's lag is %+v, %v; want one event", lag, err)
			}
			wantJournal(t, s, "fast", "before", "later")
			exec(t, conn, postgres.Writes()["append one"], []byte("slow"), int64(slow.Token), []byte(slow.Grant), []byte(slow.Owner),
				get[int64](t, conn, `SELECT position_base - (xid_base << 14) FROM tapestore.store`), int64(1), []byte("test"), []byte("first"))
			exec(t, conn, `COMMIT`)
			if got := feedOf(t, s); strings.Join(got, " ") != "before first later" {
				t.Errorf("then the feed shows %q, want the slow writer's event before the later one", got)
			}
		})
	}
}
