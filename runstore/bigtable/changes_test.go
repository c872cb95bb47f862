package bigtable_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// change is a write of each kind, with what must be there before it.
type change struct {
	name string
	// before prepares a store and returns the lease on "run".
	before func(t testing.TB, s *bigtable.Store) runstore.Lease
	do     func(ctx context.Context, s *bigtable.Store, l runstore.Lease) (any, error)
	// fenced writes are made under the lease.
	fenced bool
}

func holding(t testing.TB, s *bigtable.Store) runstore.Lease {
	l := hold(t, s, "run")
	b := appending(l, "before")
	b.Put("old", []byte("before"), runstore.Place{Index: "queue", At: runstore.After(time.Hour)})
	commit(t, s, b)
	return l
}

func nothing(testing.TB, *bigtable.Store) runstore.Lease { return runstore.Lease{} }

func letGo(t testing.TB, s *bigtable.Store) runstore.Lease {
	l := holding(t, s)
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: l.Fence()}); err != nil {
		t.Fatal(err)
	}
	return l
}

func purged(t testing.TB, s *bigtable.Store) runstore.Lease {
	l := holding(t, s)
	purge(t, s, l)
	return l
}

func purge(t testing.TB, s *bigtable.Store, l runstore.Lease) {
	t.Helper()
	b := runstore.NewBatch(l.Run, l.Fence())
	b.Purge = true
	commit(t, s, b)
}

// committing makes a batch under the lease and lets fill say what is in it.
func committing(fill func(b *runstore.Batch)) func(ctx context.Context, s *bigtable.Store, l runstore.Lease) (any, error) {
	return func(ctx context.Context, s *bigtable.Store, l runstore.Lease) (any, error) {
		b := runstore.NewBatch("run", l.Fence())
		fill(&b)
		return s.Commit(ctx, b)
	}
}

func creating(spec runstore.RunSpec) func(ctx context.Context, s *bigtable.Store, _ runstore.Lease) (any, error) {
	return func(ctx context.Context, s *bigtable.Store, _ runstore.Lease) (any, error) {
		return s.CreateRun(ctx, spec)
	}
}

func acquiring(preempt string, w runstore.Writes) func(ctx context.Context, s *bigtable.Store, _ runstore.Lease) (any, error) {
	return func(ctx context.Context, s *bigtable.Store, _ runstore.Lease) (any, error) {
		return s.AcquireLease(ctx, runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute, Grant: "next grant"}, Preempt: preempt, Writes: w,
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
	{"append one", holding, committing(func(b *runstore.Batch) { b.Append("test", []byte("one")) }), true},
	{"append many", holding, committing(func(b *runstore.Batch) {
		for range 5 {
			b.Append("test", []byte("many"))
		}
	}), true},
	{"append large", holding, committing(func(b *runstore.Batch) { b.Append("test", bytes.Repeat([]byte("large"), 20_000)) }), true},
	{"commit everything", holding, committing(func(b *runstore.Batch) {
		b.Writes = someWrites()
		b.Delete("old")
		b.Runnable = runstore.After(time.Minute)
	}), true},
	{"commit a record", holding, committing(func(b *runstore.Batch) { b.Put("old", []byte("new")) }), true},
	{"commit a large record", holding, committing(func(b *runstore.Batch) { b.Put("old", bytes.Repeat([]byte("large"), 20_000)) }), true},
	{"commit a place", holding, committing(func(b *runstore.Batch) {
		b.Put("old", []byte("new"), runstore.Place{Index: "queue", At: runstore.After(0)}, runstore.Place{Index: "other", At: runstore.After(time.Hour)})
	}), true},
	{"commit a status", holding, committing(func(b *runstore.Batch) {
		status := runstore.Status(3)
		b.Status = &status
	}), true},
	{"commit with an id", holding, committing(func(b *runstore.Batch) { b.ID, b.Writes = "batch", someWrites() }), true},
	{"commit and release", holding, committing(func(b *runstore.Batch) { b.Writes, b.Release = someWrites(), true }), true},
	{"commit unguarded", holding, func(ctx context.Context, s *bigtable.Store, _ runstore.Lease) (any, error) {
		return s.Commit(ctx, signal("run", "signal"))
	}, false},
	{"create", nothing, creating(runstore.RunSpec{ID: "run", Status: 2}), false},
	{"create with lease and writes", nothing, creating(runstore.RunSpec{
		ID: "run", Lease: &runstore.LeaseSpec{Owner: "first", TTL: time.Minute, Grant: "first grant"}, Writes: someWrites(),
	}), false},
	{"create anew", purged, creating(runstore.RunSpec{ID: "run", Writes: someWrites()}), false},
	{"acquire", letGo, acquiring("", runstore.Writes{}), false},
	{"acquire with writes", letGo, acquiring("", someWrites()), false},
	{"preempt", holding, acquiring("test", someWrites()), false},
	{"release", holding, func(ctx context.Context, s *bigtable.Store, l runstore.Lease) (any, error) {
		return s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: l.Fence()})
	}, true},
	{"release with writes", holding, func(ctx context.Context, s *bigtable.Store, l runstore.Lease) (any, error) {
		return s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: l.Fence(), Writes: someWrites()})
	}, true},
	{"purge", holding, committing(func(b *runstore.Batch) { b.Purge = true }), true},
	{"renew", holding, func(ctx context.Context, s *bigtable.Store, l runstore.Lease) (any, error) {
		return s.RenewLease(ctx, runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
	}, true},
	{"renew with writes", holding, func(ctx context.Context, s *bigtable.Store, l runstore.Lease) (any, error) {
		return s.RenewLease(ctx, runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL, ID: "renewal", Writes: someWrites()})
	}, true},
}

// strictWrites append one event under a strict lease.
var strictWrites = map[string]func(ctx context.Context, s *bigtable.Store, l runstore.Lease) error{
	"commit": func(ctx context.Context, s *bigtable.Store, l runstore.Lease) error {
		b := appending(l, "late")
		b.ID = "commit"
		_, err := s.Commit(ctx, b)
		return err
	},
	"handoff": func(ctx context.Context, s *bigtable.Store, l runstore.Lease) error {
		req := runstore.AcquireRequest{
			Run: l.Run, LeaseSpec: runstore.LeaseSpec{Owner: "successor", TTL: runstore.MaxTTL, Grant: "handoff"}, Guards: []runstore.Guard{l.Fence()},
		}
		req.Writes.Append("test", []byte("late"))
		_, err := s.AcquireLease(ctx, req)
		return err
	},
	"renewal": func(ctx context.Context, s *bigtable.Store, l runstore.Lease) error {
		req := runstore.RenewRequest{ID: "renewal", Fence: l.Fence(), TTL: runstore.MaxTTL}
		req.Writes.Append("test", []byte("late"))
		_, err := s.RenewLease(ctx, req)
		return err
	},
	"release": func(ctx context.Context, s *bigtable.Store, l runstore.Lease) error {
		req := runstore.ReleaseRequest{Fence: l.Fence()}
		req.Writes.Append("test", []byte("late"))
		_, err := s.ReleaseLease(ctx, req)
		return err
	},
}

// shape returns what a reader sees of the run "run" and of the queues, without times
// and positions.
func shape(t testing.TB, s *bigtable.Store) string {
	t.Helper()
	ctx := t.Context()
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	record := func(r runstore.Record) string {
		return fmt.Sprintf("%s at %d, from %d by %d to %d by %d: %s",
			r.Key, r.Version, r.Created.Seq, r.Created.Token, r.Updated.Seq, r.Updated.Token, short(r.Value))
	}
	run, err := s.GetRun(ctx, "run")
	switch {
	case errors.Is(err, runstore.ErrNotFound):
		say("no run")
	case err != nil:
		t.Fatal(err)
	default:
		h := run.Holder
		say("status %d, runnable %v, seq %d, token %d, held by %s %s %d for %v after one that was %v %+v, summary %s", run.Status, !run.RunnableAt.IsZero(), run.LastSeq,
			run.Token, h.Owner, h.Reactor, h.Token, h.TTL, h.Former, h.Preempted, record(run.Summary))
		for e, err := range runstore.Journal(ctx, s, "run", 1) {
			say("event %d %s by %s %d: %s, %v", e.Seq, e.Kind, e.Owner, e.Token, short(e.Data), err)
		}
		for r, err := range runstore.Records(ctx, s, "run", "") {
			say("record %s, %v", record(r), err)
		}
	}
	for _, index := range []runstore.IndexName{"queue", "other", runstore.IndexRuns, runstore.IndexRunnable} {
		for e, err := range runstore.Entries(ctx, s, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
			say("in %s: %s %s, %v", index, e.Run, record(e.Record), err)
		}
	}
	return strings.Join(all, "\n")
}

// short tells bytes apart in a few.
func short(b []byte) string {
	if len(b) < 64 {
		return string(b)
	}
	return fmt.Sprintf("%d bytes %x", len(b), sha256.Sum256(b))
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
	run := func(r *runstore.Run) {
		clear(&r.CreatedAt)
		if r.Token > 0 {
			clear(&r.ExpiresAt)
		}
		if r.Holder != (runstore.Holder{}) {
			for _, at := range []*time.Time{&r.Holder.ExpiresAt, &r.Holder.GrantedAt, &r.Holder.RenewedAt, &r.Holder.ProgressedAt} {
				clear(at)
			}
		}
		if r.Summary.Version > 0 {
			clear(&r.Summary.Created.Time)
			clear(&r.Summary.Updated.Time)
		}
	}
	switch r := result.(type) {
	case runstore.Committed:
		clear(&r.Time)
		return fmt.Sprintf("%+v", r)
	case runstore.Granted:
		clear(&r.Lease.ExpiresAt)
		clear(&r.Committed.Time)
		return fmt.Sprintf("%+v", r)
	case runstore.Renewed:
		clear(&r.Lease.ExpiresAt)
		if r.Committed.LastSeq > 0 {
			clear(&r.Committed.Time)
		}
		return fmt.Sprintf("%+v", r)
	case runstore.Created:
		run(&r.Run)
		clear(&r.Committed.Time)
		if r.Lease != (runstore.Lease{}) {
			clear(&r.Lease.ExpiresAt)
		}
		return fmt.Sprintf("%+v", r)
	default:
		t.Fatalf("a result of type %T", result)
		return ""
	}
}
