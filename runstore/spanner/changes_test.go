package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// change is a write of each kind, with what must be there before it.
type change struct {
	name string
	// before prepares a store and returns the lease on the run.
	before func(t testing.TB, s *spanner.Store, n names) runstore.Lease
	do     func(ctx context.Context, s *spanner.Store, n names, l runstore.Lease) (any, error)
	// fenced writes are made under the lease.
	fenced bool
}

// names are those of the runs that a change is about: many fit into a
// database.
type names struct {
	run, second runstore.RunID
}

func named(n int) names {
	return names{runstore.RunID(fmt.Sprintf("run-%d", n)), runstore.RunID(fmt.Sprintf("second-%d", n))}
}

// unnamed makes what is said of one set of names comparable.
func (n names) unnamed(text string) string {
	return strings.NewReplacer(string(n.run), "run", string(n.second), "second").Replace(text)
}

func holding(t testing.TB, s *spanner.Store, n names) runstore.Lease {
	l := holdAs(t, s, n.run, runstore.LeaseSpec{Owner: "holder", TTL: time.Minute})
	b := appending(l, "before")
	b.Put("old", []byte("before"), runstore.Place{Index: "queue", At: runstore.After(time.Hour)})
	commit(t, s, b)
	return l
}

func ignoreNothingToWrite(testing.TB, *spanner.Store, names) runstore.Lease { return runstore.Lease{} }

func letGo(t testing.TB, s *spanner.Store, n names) runstore.Lease {
	l := holding(t, s, n)
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: l.Fence()}); err != nil {
		t.Fatal(err)
	}
	return l
}

func purged(t testing.TB, s *spanner.Store, n names) runstore.Lease {
	l := holding(t, s, n)
	commit(t, s, purgeOf(l.Run))
	return l
}

// purging is the batch that purges a run, whoever holds it.
func purgeOf(id runstore.RunID) runstore.Batch {
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Purge = true
	return b
}

func committing(fill func(b *runstore.Batch)) func(ctx context.Context, s *spanner.Store, n names, l runstore.Lease) (any, error) {
	return func(ctx context.Context, s *spanner.Store, n names, l runstore.Lease) (any, error) {
		b := runstore.NewBatch(n.run, l.Fence())
		fill(&b)
		return s.Commit(ctx, b)
	}
}

func creating(spec func(n names) runstore.RunSpec) func(ctx context.Context, s *spanner.Store, n names, _ runstore.Lease) (any, error) {
	return func(ctx context.Context, s *spanner.Store, n names, _ runstore.Lease) (any, error) {
		return s.CreateRun(ctx, spec(n))
	}
}

func acquiring(preempt string) func(ctx context.Context, s *spanner.Store, n names, _ runstore.Lease) (any, error) {
	return func(ctx context.Context, s *spanner.Store, n names, _ runstore.Lease) (any, error) {
		return s.AcquireLease(ctx, runstore.AcquireRequest{
			Run: n.run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute, Grant: "next grant"}, Preempt: preempt, Writes: someWrites(),
		})
	}
}

func someWrites() runstore.Writes {
	var w runstore.Writes
	w.Append("test", []byte("one"))
	w.Append("test", []byte("two"))
	w.Put(runstore.SummaryKey, []byte("summary"))
	w.Put("new", []byte("value"), runstore.Place{Index: "queue", At: runstore.After(time.Minute)})
	w.Records[1].Event = 1
	return w
}

var changes = []change{
	{"commit", holding, committing(func(b *runstore.Batch) { b.Writes = someWrites(); b.Delete("old") }), true},
	{"commit with an id", holding, committing(func(b *runstore.Batch) { b.ID, b.Writes = "batch", someWrites() }), true},
	{"commit and release", holding, committing(func(b *runstore.Batch) { b.Writes, b.Release = someWrites(), true }), true},
	{"commit unguarded", holding, func(ctx context.Context, s *spanner.Store, n names, _ runstore.Lease) (any, error) {
		return s.Commit(ctx, signal(n.run, "signal"))
	}, false},
	{"commit to several", func(t testing.TB, s *spanner.Store, n names) runstore.Lease {
		commit(t, s, appending(hold(t, s, n.second), "before"))
		return holding(t, s, n)
	}, func(ctx context.Context, s *spanner.Store, n names, l runstore.Lease) (any, error) {
		one, two := appending(l, "one"), signal(n.second, "two")
		one.Writes, two.ID = someWrites(), "batch"
		return s.CommitMulti(ctx, []runstore.Batch{one, two})
	}, true},
	{"create", ignoreNothingToWrite, creating(func(n names) runstore.RunSpec { return runstore.RunSpec{ID: n.run, Status: 2} }), false},
	{"create with lease and writes", ignoreNothingToWrite, creating(func(n names) runstore.RunSpec {
		return runstore.RunSpec{ID: n.run, Lease: &runstore.LeaseSpec{Owner: "first", TTL: time.Minute, Grant: "first grant"}, Writes: someWrites()}
	}), false},
	{"create anew", purged, creating(func(n names) runstore.RunSpec { return runstore.RunSpec{ID: n.run, Writes: someWrites()} }), false},
	{"acquire", letGo, acquiring(""), false},
	{"preempt", holding, acquiring("test"), false},
	{"hand off", holding, func(ctx context.Context, s *spanner.Store, n names, l runstore.Lease) (any, error) {
		return s.AcquireLease(ctx, runstore.AcquireRequest{
			Run: n.run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute, Grant: "next grant"},
			Guards: []runstore.Guard{l.Fence(), runstore.AtToken(l.Token)}, Writes: someWrites(),
		})
	}, true},
	{"release", holding, func(ctx context.Context, s *spanner.Store, n names, l runstore.Lease) (any, error) {
		return s.ReleaseLease(ctx, runstore.ReleaseRequest{
			Fence: l.Fence(), Guards: []runstore.Guard{runstore.AtToken(l.Token), runstore.AtVersion("old", 1)}, Writes: someWrites(),
		})
	}, true},
	{"purge", holding, committing(func(b *runstore.Batch) { b.Purge = true }), true},
	{"renew", holding, func(ctx context.Context, s *spanner.Store, n names, l runstore.Lease) (any, error) {
		return s.RenewLease(ctx, runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
	}, true},
	{"renew with writes", holding, renewing(""), true},
	{"renew with writes and an id", holding, renewing("renewal"), true},
	{"acquire without writes", letGo, func(ctx context.Context, s *spanner.Store, n names, _ runstore.Lease) (any, error) {
		return s.AcquireLease(ctx, runstore.AcquireRequest{Run: n.run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute, Grant: "next grant"}})
	}, false},
	{"release without writes", holding, func(ctx context.Context, s *spanner.Store, _ names, l runstore.Lease) (any, error) {
		return s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: l.Fence()})
	}, true},
}

func renewing(id runstore.BatchID) func(ctx context.Context, s *spanner.Store, _ names, l runstore.Lease) (any, error) {
	return func(ctx context.Context, s *spanner.Store, _ names, l runstore.Lease) (any, error) {
		return s.RenewLease(ctx, runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL, ID: id, Writes: someWrites()})
	}
}

func told(r runstore.Record) string {
	return fmt.Sprintf("%s at %d, from %d under %d to %d under %d: %s",
		r.Key, r.Version, r.Created.Seq, r.Created.Token, r.Updated.Seq, r.Updated.Token, r.Value)
}

// shape returns what a reader sees of the runs of a change, without times and positions.
func shape(t testing.TB, s *spanner.Store, n names) string {
	t.Helper()
	ctx := t.Context()
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, id := range []runstore.RunID{n.run, n.second} {
		run, err := s.GetRun(ctx, id)
		if errors.Is(err, runstore.ErrNotFound) {
			say("no run %s", id)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		h := run.Holder
		say("%s: status %d, runnable %v, seq %d, token %d, held by %s %s %d for %v of %v after %v %+v, summary %s", id, run.Status, !run.RunnableAt.IsZero(),
			run.LastSeq, run.Token, h.Owner, h.Reactor, h.Token, h.TTL, h.MaxStall, h.Former, h.Preempted, told(run.Summary))
		events, err := s.ReadJournal(ctx, id, 1, 100)
		for _, e := range events {
			say("event %d %s by %s %d: %s", e.Seq, e.Kind, e.Owner, e.Token, e.Data)
		}
		records, err2 := s.ReadRecords(ctx, id, runstore.RecordQuery{Limit: 100})
		for _, r := range records {
			say("record %s", told(r))
		}
		switch err := errors.Join(err, err2); {
		case errors.Is(err, runstore.ErrNotFound): // a purge comes late, which the caller may wait for
			say("run %s went away while it was looked at", id)
		case err != nil:
			t.Fatal(err)
		}
	}
	return n.unnamed(strings.Join(all, "\n"))
}

// across returns what the queues and the feed hold of the runs of changes.
func across(t testing.TB, s *spanner.Store, all ...names) []string {
	t.Helper()
	said := make([]string, len(all))
	say := func(id runstore.RunID, format string, args ...any) {
		for i, n := range all {
			if id == n.run || id == n.second {
				said[i] += n.unnamed(fmt.Sprintf(format, args...)) + "\n"
			}
		}
	}
	for _, index := range []runstore.IndexName{"queue", runstore.IndexRuns, runstore.IndexRunnable} {
		found, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: runstore.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range found {
			say(e.Run, "in %s: %s %s", index, e.Run, told(e.Record))
		}
	}
	feed, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: runstore.MaxPage})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range feed {
		say(e.Run, "in the feed: %s %d %s", e.Run, e.Seq, e.Data)
	}
	return said
}

// alike fails if the queues and the feed differ about the runs of the same change.
func alike(t testing.TB, s *spanner.Store, all ...names) {
	t.Helper()
	said := across(t, s, all...)
	for i, one := range said {
		if one != said[0] {
			t.Errorf("the queues and the feed hold of %v\n%swant\n%s", all[i], one, said[0])
		}
	}
}

// timeless takes the times out of a result, when they are there.
func timeless(t testing.TB, result any) string {
	t.Helper()
	clear := func(at *time.Time) {
		if at.IsZero() {
			t.Errorf("a time is missing in %+v", result)
		}
		*at = time.Time{}
	}
	switch r := result.(type) {
	case runstore.Committed:
		clear(&r.Time)
		return fmt.Sprintf("%+v", r)
	case []runstore.Committed:
		var all []string
		for _, one := range r {
			all = append(all, timeless(t, one))
		}
		return strings.Join(all, "\n")
	case runstore.Granted:
		clear(&r.ExpiresAt)
		clear(&r.Committed.Time)
		return fmt.Sprintf("%+v", r)
	case runstore.Renewed:
		clear(&r.ExpiresAt)
		if r.Committed.LastSeq > 0 {
			clear(&r.Committed.Time)
		}
		return fmt.Sprintf("%+v", r)
	case runstore.Created:
		clear(&r.Run.CreatedAt)
		clear(&r.Committed.Time)
		if r.Run.Token > 0 {
			clear(&r.Run.ExpiresAt)
		}
		if h := &r.Run.Holder; *h != (runstore.Holder{}) {
			for _, at := range []*time.Time{&h.ExpiresAt, &h.GrantedAt, &h.RenewedAt, &h.ProgressedAt} {
				clear(at)
			}
		}
		if r.Run.Summary.Version > 0 {
			clear(&r.Run.Summary.Created.Time)
			clear(&r.Run.Summary.Updated.Time)
		}
		if r.Lease != (runstore.Lease{}) {
			clear(&r.Lease.ExpiresAt)
		}
		return fmt.Sprintf("%+v", r)
	default:
		t.Fatalf("a result of type %T", result)
		return ""
	}
}
