package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// trip is an operation that takes one round trip, or two if it is one of twice. It may be repeated.
type trip struct {
	name string
	want error
	do   func(s *postgres.Store, i int) error
}

// twice are the operations that take two round trips: commits whose statement is not applied.
var twice = []string{
	"commit under a stale fence", "commit at a stale version", "commit an id again",
}

// tripRounds is how often each operation is repeated. The first prepares it.
const tripRounds = 3

// prepareTrips makes the runs that the trips are about.
func prepareTrips(t *testing.T, s *postgres.Store) []trip {
	ctx := t.Context()
	lease := hold(t, s, "run")
	stale := lease
	stale.Grant = "another"
	taken := hold(t, s, "taken")
	held := make([]runstore.Lease, tripRounds)
	for i := range held {
		held[i] = hold(t, s, runstore.RunID(fmt.Sprint("free ", i)))
		if _, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: held[i].Fence()}); err != nil {
			t.Fatal(err)
		}
	}
	b := appending(taken, "event")
	b.Put(runstore.SummaryKey, []byte("summary"))
	b.Put("key", []byte("value"), runstore.Place{Index: "queue", At: runstore.After(0)})
	commit(t, s, b)
	committing := func(l runstore.Lease, events int, fill func(b *runstore.Batch)) func(s *postgres.Store, i int) error {
		return func(s *postgres.Store, _ int) error {
			b := appending(l)
			for range events {
				b.Append("test", []byte("event"))
			}
			fill(&b)
			_, err := s.Commit(ctx, b)
			return err
		}
	}
	nothing := func(*runstore.Batch) {}
	everything := func(b *runstore.Batch) {
		status := runstore.Status(1)
		b.Status = &status
		b.Put("key", []byte("value"), runstore.Place{Index: "queue", At: runstore.After(time.Minute)}, runstore.Place{Index: "other", At: runstore.After(time.Hour)})
		b.Put("another", []byte("value"))
		b.Delete("absent")
	}
	scan := func(q runstore.IndexQuery) func(s *postgres.Store, _ int) error {
		q.Until, q.Limit = runstore.EndOfTime, 10
		return func(s *postgres.Store, _ int) error {
			_, err := s.ScanIndex(ctx, q)
			return err
		}
	}
	return []trip{
		{"commit one event", nil, committing(lease, 1, nothing)},
		{"commit many events", nil, committing(lease, 30, nothing)},
		{"commit everything", nil, committing(lease, 3, everything)},
		{"commit one record", nil, func(s *postgres.Store, _ int) error {
			b := runstore.NewBatch(lease.Run, lease.Fence())
			b.Put("alone", nil)
			_, err := s.Commit(ctx, b)
			return err
		}},
		{"commit with an id", nil, committing(lease, 1, func(b *runstore.Batch) { b.ID = runstore.NewBatchID() })},
		{"commit an id again", nil, committing(lease, 1, func(b *runstore.Batch) { b.ID = "again" })},
		{"commit under a stale fence", runstore.ErrFenced, committing(stale, 1, nothing)},
		{"commit everything under a stale fence", runstore.ErrFenced, committing(stale, 3, everything)},
		{"commit at a stale version", runstore.ErrConflict, committing(lease, 1, func(b *runstore.Batch) { b.Require(runstore.AtVersion("key", 999)) })},
		{"commit at the last token", nil, committing(lease, 1, func(b *runstore.Batch) { b.Require(runstore.AtToken(lease.Token)) })},
		{"commit at another token", runstore.ErrConflict, committing(lease, 1, func(b *runstore.Batch) { b.Require(runstore.AtToken(0)) })},
		{"acquire a held lease", runstore.ErrLeaseHeld, func(s *postgres.Store, _ int) error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{Run: "taken", LeaseSpec: runstore.LeaseSpec{Owner: "late", TTL: time.Minute}})
			return err
		}},
		{"acquire a free lease", nil, func(s *postgres.Store, i int) error {
			granted, err := s.AcquireLease(ctx, runstore.AcquireRequest{
				Run: held[i].Run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute},
			})
			held[i] = granted.Lease
			return err
		}},
		{"renew", nil, func(s *postgres.Store, i int) error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: held[i].Fence(), TTL: time.Minute})
			return err
		}},
		{"renew under a stale fence", runstore.ErrFenced, func(s *postgres.Store, _ int) error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: stale.Fence(), TTL: time.Minute})
			return err
		}},
		{"hand off", nil, func(s *postgres.Store, i int) error {
			granted, err := s.AcquireLease(ctx, runstore.AcquireRequest{
				Run: held[i].Run, LeaseSpec: runstore.LeaseSpec{Owner: "successor", TTL: time.Minute}, Guards: []runstore.Guard{held[i].Fence()},
			})
			held[i] = granted.Lease
			return err
		}},
		{"release under a stale fence", runstore.ErrFenced, func(s *postgres.Store, _ int) error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: stale.Fence()})
			return err
		}},
		{"acquire under a former grant id", runstore.ErrFenced, func(s *postgres.Store, i int) error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{
				Run: held[i].Run, LeaseSpec: runstore.LeaseSpec{Owner: "late", TTL: time.Minute, Grant: "grant-" + runstore.GrantID(held[i].Run)},
			})
			return err
		}},
		{"acquire what is absent", runstore.ErrNotFound, func(s *postgres.Store, _ int) error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{Run: "absent", LeaseSpec: runstore.LeaseSpec{Owner: "late", TTL: time.Minute}})
			return err
		}},
		{"release at a stale seq", runstore.ErrConflict, func(s *postgres.Store, i int) error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: held[i].Fence(), Guards: []runstore.Guard{runstore.AtSeq(99)}})
			return err
		}},
		{"release", nil, func(s *postgres.Store, i int) error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: held[i].Fence(), Guards: []runstore.Guard{runstore.AtToken(held[i].Token)}})
			return err
		}},
		{"release again", nil, func(s *postgres.Store, i int) error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: held[i].Fence()})
			return err
		}},
		{"acquire after a release", nil, func(s *postgres.Store, i int) error {
			granted, err := s.AcquireLease(ctx, runstore.AcquireRequest{Run: held[i].Run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}})
			held[i] = granted.Lease
			return err
		}},
		{"release without guards", nil, func(s *postgres.Store, i int) error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: held[i].Fence()})
			return err
		}},
		{"create with lease and writes", nil, func(s *postgres.Store, i int) error {
			_, err := s.CreateRun(ctx, runstore.RunSpec{
				ID: runstore.RunID(fmt.Sprint("new ", i)), Writes: someWrites(), Lease: &runstore.LeaseSpec{Owner: "first", TTL: time.Minute},
			})
			return err
		}},
		{"create what exists", nil, func(s *postgres.Store, _ int) error {
			_, err := s.CreateRun(ctx, runstore.RunSpec{ID: "taken"})
			return err
		}},
		{"get", nil, func(s *postgres.Store, _ int) error { _, err := s.GetRun(ctx, "taken"); return err }},
		{"get what is absent", runstore.ErrNotFound, func(s *postgres.Store, _ int) error { _, err := s.GetRun(ctx, "absent"); return err }},
		{"read the journal", nil, func(s *postgres.Store, _ int) error { _, err := s.ReadJournal(ctx, "taken", 1, 10); return err }},
		{"read keys", nil, func(s *postgres.Store, _ int) error {
			_, err := s.ReadRecords(ctx, "taken", runstore.RecordQuery{Keys: []runstore.RecordKey{"key", "absent"}})
			return err
		}},
		{"read a prefix", nil, func(s *postgres.Store, _ int) error {
			_, err := s.ReadRecords(ctx, "taken", runstore.RecordQuery{Prefix: "k", Limit: 10})
			return err
		}},
		{"scan a queue", nil, scan(runstore.IndexQuery{Index: "queue"})},
		{"scan a queue from a time with heads, newest first", nil, scan(runstore.IndexQuery{Index: "queue", From: lease.ExpiresAt.Add(-runstore.MaxTTL), Heads: true, Newest: true})},
		{"scan the runs", nil, scan(runstore.IndexQuery{Index: runstore.IndexRuns})},
		{"scan what is runnable", nil, scan(runstore.IndexQuery{Index: runstore.IndexRunnable})},
		{"read the feed", nil, func(s *postgres.Store, _ int) error {
			_, err := s.ReadFeed(ctx, runstore.FeedQuery{Limit: 10})
			return err
		}},
		{"now", nil, func(s *postgres.Store, _ int) error { _, err := s.Now(ctx); return err }},
	}
}

// Every operation takes one round trip once its statement is prepared. A commit that is refused or a repeat takes
// a second one.
func TestOneRoundTrip(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := &wire{}
			params := []string{"pool_max_conns=1", "default_query_exec_mode=" + mode}
			if mode != "cache_statement" {
				params = append(params, "pooled=yes")
			}
			s := open(t, with(database(t), params...), w.through)
			for _, trip := range prepareTrips(t, s) {
				for i := range tripRounds {
					n := w.counted(func() {
						if err := trip.do(s, i); !errors.Is(err, trip.want) || (trip.want == nil) != (err == nil) {
							t.Errorf("%s: got %v, want %v", trip.name, err, trip.want)
						}
					})
					want := 1
					if slices.Contains(twice, trip.name) && !(trip.want == nil && i == 0) {
						want = 2
					}
					if n != want && (i > 0 || mode != "cache_statement") {
						t.Errorf("%s: %d round trips, want %d", trip.name, n, want)
					}
				}
			}
		})
	}
}

// Concurrent appends of a handle to one run share round trips.
func TestAppendsShareRoundTrips(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, with(address, "pool_max_conns=1", "default_query_exec_mode=exec"), w.through)
	lease := hold(t, s, "run")
	var errs []error
	n := w.counted(func() {
		errs = grouped(t, s, address, 15, func(int) error {
			_, err := s.Commit(t.Context(), appending(lease, "event"))
			return err
		}, func() {})
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n != 2 { // that of the first and that of the others
		t.Errorf("16 appends took %d round trips, want 2", n)
	}
}
