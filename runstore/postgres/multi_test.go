package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// A commit of several runs whose messages are lost is applied once, to all.
func TestLostMessagesOfAMultiCommit(t *testing.T) {
	t.Parallel()
	for _, harm := range []harm{loseRequest, loseReply} {
		for _, mode := range []string{"exec", "simple_protocol"} {
			t.Run(fmt.Sprintf("%s/%d", mode, harm), func(t *testing.T) {
				t.Parallel()
				address := database(t)
				w := &wire{}
				s := open(t, with(address, "default_query_exec_mode="+mode), w.through)
				batches := twoBatches(t, s)
				w.lose(harm, "lock_runs")
				done, err := s.CommitMulti(t.Context(), batches)
				if err != nil {
					t.Fatal(err)
				}
				got := fmt.Sprint(done[0].FirstSeq, done[0].LastSeq, done[1].FirstSeq, done[1].LastSeq, done[1].Versions, done[0].Time.Equal(done[1].Time))
				if want := "1 1 1 2 [1] true"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
				if n := get[int](t, connect(t, address), `SELECT count(*) FROM tapestore.events`); n != 3 {
					t.Errorf("%d events, want 3", n)
				}
				sends := [...]int{loseRequest: 4, loseReply: 2}[harm]
				if n := len(w.sent()); n != sends {
					t.Errorf("%d writes were sent, want %d", n, sends)
				}
			})
		}
	}
}

func twoBatches(t *testing.T, s *postgres.Store) []runstore.Batch {
	withRecord := appending(hold(t, s, "b"), "b1", "b2")
	withRecord.Put("key", []byte("value"))
	return []runstore.Batch{appending(hold(t, s, "a"), "a1"), withRecord}
}

// A commit of several runs that was given up is refused as a whole when it comes
// late.
func TestGivenUpMultiCommitComesLate(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, with(address, "default_query_exec_mode=exec"), w.through, impatient)
	batches := twoBatches(t, s)
	w.lose(loseRequest, "lock_runs")
	if _, err := s.CommitMulti(t.Context(), batches); runstore.OutcomeOf(err) != runstore.NotApplied || err == nil {
		t.Fatalf("got %v, want an error that says that it was not applied", err)
	}
	conn := connect(t, address)
	before := stored(t, conn)
	late := func(args func(s statement) []any) error {
		var batch pgx.Batch
		batch.Queue(`SELECT tapestore.lock_runs('{a,b}')`)
		for _, s := range w.sent() {
			batch.Queue(s.sql, args(s)...)
		}
		return conn.SendBatch(t.Context(), &batch).Close()
	}
	var refused *pgconn.PgError
	if err := late(func(s statement) []any { return s.args }); !errors.As(err, &refused) || refused.Code != "TS001" {
		t.Errorf("the late copy: got %v, want a refusal", err)
	}
	if after := stored(t, conn); after != before {
		t.Errorf("the late copy changed\n%s\nto\n%s", before, after)
	}
	if err := late(renamed); err != nil {
		t.Errorf("the same commit under other nonces: %v", err)
	}
}
