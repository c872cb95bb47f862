package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

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

// A commit of several runs that was voided is refused as a whole when it arrives late.
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
		batch.Queue(`SELECT tapestore.lock_runs('{a,b}', '{NULL,NULL}', NULL)`)
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

// interloper does something, once, right before a statement is sent.
type interloper struct {
	*wire
	before string // the statement has this in it
	once   sync.Once
	do     func()
}

func (i *interloper) through(config *pgxpool.Config, o *postgres.Options) {
	i.wire.through(config, o)
	config.ConnConfig.Tracer = i
}

// TraceQueryStart implements pgx.QueryTracer.
func (i *interloper) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, i.before) {
		i.once.Do(i.do)
	}
	return i.wire.TraceQueryStart(ctx, conn, data)
}

// The reply of a commit over several runs is lost, and all of them have forgotten its result when the store
// asks: the outcome is unknown, and the commit is not sent again.
func TestMultiCommitThatAllRunsForgot(t *testing.T) {
	t.Parallel()
	address := database(t)
	other := open(t, address)
	i := &interloper{wire: &wire{}, before: ".settle("}
	i.do = func() {
		for _, id := range []runstore.RunID{"a", "b"} {
			for range 3 * runstore.RememberedBatches {
				b := runstore.NewBatch(id, runstore.Unguarded("test"))
				b.ID = runstore.NewBatchID()
				commit(t, other, b)
			}
		}
	}
	s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
	batches := twoBatches(t, s)
	for n := range batches {
		batches[n].Events = nil // their nonces would show that the commit was applied
		batches[n].Put("counted", []byte("value"))
		batches[n].ID = runstore.NewBatchID()
	}
	i.lose(loseReply, "lock_runs")
	if _, err := s.CommitMulti(t.Context(), batches); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Errorf("got %v, want ErrUnknownOutcome", err)
	}
	for _, id := range []runstore.RunID{"a", "b"} {
		records, err := other.ReadRecords(t.Context(), id, runstore.RecordQuery{Keys: []runstore.RecordKey{"counted"}})
		if err != nil || len(records) != 1 || records[0].Version != 1 {
			t.Errorf("%q has %+v, %v; want the record once, at version 1", id, records, err)
		}
	}
}

// The repeat of a commit over several runs, whose reply is lost and one of whose runs is purged before the repeat is
// settled, has the result of the first call.
func TestRepeatedMultiCommitSettledAfterAPurge(t *testing.T) {
	t.Parallel()
	address := database(t)
	other := open(t, address)
	i := &interloper{wire: &wire{}, before: ".settle("}
	i.do = func() {
		b := runstore.NewBatch("a", runstore.Unguarded("test"))
		b.Purge = true
		commit(t, other, b)
	}
	s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
	batches := twoBatches(t, s)
	for n := range batches {
		batches[n].ID = runstore.NewBatchID()
	}
	if _, err := s.CommitMulti(t.Context(), batches); err != nil {
		t.Fatal(err)
	}
	i.lose(loseReply, "lock_runs")
	again, err := s.CommitMulti(t.Context(), batches)
	if err != nil {
		t.Fatal(err)
	}
	for n, done := range again {
		if !done.Replayed {
			t.Errorf("batch %d: got %+v, want a repeat", n, done)
		}
	}
}

// A commit of several runs that was applied, and whose reply was lost, is reported as applied,
// although one of its runs was purged, or has evicted the result, when it is settled. A retry
// returns the same, whatever is lost.
func TestMultiCommitSettledByTheRunsThatRemember(t *testing.T) {
	t.Parallel()
	purge := func(t *testing.T, s *postgres.Store) {
		b := runstore.NewBatch("a", runstore.Unguarded("test"))
		b.Purge = true
		commit(t, s, b)
	}
	for name, tc := range map[string]struct {
		between func(t *testing.T, s *postgres.Store)
		ids     bool
	}{
		"purged":             {purge, true},
		"purged, without id": {purge, false},
		"purged and made anew": {func(t *testing.T, s *postgres.Store) {
			purge(t, s)
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "a"}); err != nil {
				t.Fatalf("create a anew: %v", err)
			}
		}, true},
		"forgotten": {func(t *testing.T, s *postgres.Store) {
			for range 3 * runstore.RememberedBatches {
				b := runstore.NewBatch("a", runstore.Unguarded("test"))
				b.ID = runstore.NewBatchID()
				commit(t, s, b)
			}
		}, true},
	} {
		for _, mode := range []string{"exec", "simple_protocol"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				address := database(t)
				other := open(t, address)
				i := &interloper{wire: &wire{}, before: ".settle("}
				i.do = func() {
					tc.between(t, other)
					i.lose(loseRequest, i.before) // it was on its way before that
				}
				s := open(t, with(address, "default_query_exec_mode="+mode), i.through)
				batches := twoBatches(t, s)
				batches[0].Events = nil // they would tell
				batches[0].Put("key", []byte("value"))
				for n := range batches {
					if tc.ids {
						batches[n].ID = runstore.NewBatchID()
					}
				}
				i.lose(loseReply, "lock_runs")
				done, err := s.CommitMulti(t.Context(), batches)
				if err != nil {
					t.Fatal(err)
				}
				check := func(what string, done []runstore.Committed, replayed bool) {
					t.Helper()
					if got, want := fmt.Sprintf("%+v", done[0]), fmt.Sprintf("%+v", runstore.Committed{Replayed: true}); got != want {
						t.Errorf("%s: got %s of the run that has forgotten, want %s", what, got, want)
					}
					got := fmt.Sprint(done[1].FirstSeq, done[1].LastSeq, done[1].Versions, done[1].Replayed, done[1].Time.IsZero())
					if want := fmt.Sprint(1, 2, []int{1}, replayed, false); got != want {
						t.Errorf("%s: got %s of the run that remembers, want %s", what, got, want)
					}
				}
				check("settled", done, false)
				for _, harm := range []harm{none, loseRequest, loseReply} {
					if !tc.ids {
						break // it is no repeat
					}
					i.lose(harm, "lock_runs")
					again, err := s.CommitMulti(t.Context(), batches)
					if err != nil {
						t.Fatal(err)
					}
					check(fmt.Sprint("repeated with harm ", harm), again, true)
				}
				if n := get[int](t, connect(t, address), `SELECT count(*) FROM tapestore.events`); n != 2 {
					t.Errorf("%d events, want 2", n)
				}
			})
		}
	}
}

// The reply of a commit over several runs is lost. One run had the batch's id from another commit and
// answers with that result, which does not show whether this commit was applied; the other run was purged
// since. The outcome is unknown, and the commit is not sent again.
func TestMultiCommitWithTheIDOfAnotherCommit(t *testing.T) {
	t.Parallel()
	for _, recreated := range []bool{false, true} {
		t.Run(fmt.Sprint("recreated: ", recreated), func(t *testing.T) {
			t.Parallel()
			address := database(t)
			other := open(t, address)
			i := &interloper{wire: &wire{}, before: ".settle("}
			i.do = func() {
				purge(t, other, "a")
				if recreated {
					anew(t, other, "a")
				}
			}
			s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
			hold(t, s, "a")
			batches := []runstore.Batch{runstore.NewBatch("a", runstore.Unguarded("test")), appending(hold(t, s, "b"), "b1")}
			batches[0].Append("test", []byte("a1"))
			batches[1].ID = "used"
			commit(t, s, batches[1])
			i.lose(loseReply, "lock_runs")
			if done, err := s.CommitMulti(t.Context(), batches); !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Errorf("got %+v, %v, want ErrUnknownOutcome", done, err)
			}
			wantJournal(t, other, "b", "b1")
			if n := get[int](t, connect(t, address), `SELECT count(*) FROM tapestore.events WHERE data = 'a1'`); n != 0 {
				t.Errorf("%d events were applied after the purge, want none", n)
			}
			if n := len(i.sent()); n != 2 {
				t.Errorf("%d writes were sent, want 2", n)
			}
		})
	}
}

// A commit over several runs that is refused says why also on a server without MD5, as in FIPS mode. A wrong
// hash of the grant's id would turn the conflict into ErrFenced.
func TestRefusedMultiCommitWithoutMD5(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	exec(t, connect(t, address), `ALTER FUNCTION pg_catalog.md5(bytea) RENAME TO no_md5`) // in this database only
	stale := lease
	stale.Grant = "another"
	if _, err := s.CommitMulti(t.Context(), []runstore.Batch{appending(stale, "zombie")}); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("under another grant: got %v, want ErrFenced", err)
	}
	b := appending(lease, "event")
	b.Require(runstore.AtVersion("key", 7))
	if _, err := s.CommitMulti(t.Context(), []runstore.Batch{b}); !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("at another version of a record: got %v, want ErrConflict", err)
	}
	wantJournal(t, s, "run")
}
