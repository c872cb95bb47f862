package bigtable_test

import (
	"bytes"
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
	do     func(t testing.TB, s *bigtable.Store, l runstore.Lease) (any, error)
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
func committing(fill func(b *runstore.Batch)) func(t testing.TB, s *bigtable.Store, l runstore.Lease) (any, error) {
	return func(t testing.TB, s *bigtable.Store, l runstore.Lease) (any, error) {
		b := runstore.NewBatch("run", l.Fence())
		fill(&b)
		return s.Commit(t.Context(), b)
	}
}

func creating(spec runstore.RunSpec) func(t testing.TB, s *bigtable.Store, _ runstore.Lease) (any, error) {
	return func(t testing.TB, s *bigtable.Store, _ runstore.Lease) (any, error) {
		return s.CreateRun(t.Context(), spec)
	}
}

func acquiring(preempt string, w runstore.Writes) func(t testing.TB, s *bigtable.Store, _ runstore.Lease) (any, error) {
	return func(t testing.TB, s *bigtable.Store, _ runstore.Lease) (any, error) {
		return s.AcquireLease(t.Context(), runstore.AcquireRequest{
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
		b.Put("old", []byte("new"), runstore.Place{Index: "queue", At: runstore.After(0)}, runstore.Place{Index: "other", At: runstore.Never()})
	}), true},
	{"commit a status", holding, committing(func(b *runstore.Batch) {
		status := runstore.Status(3)
		b.Status = &status
	}), true},
	{"commit with an id", holding, committing(func(b *runstore.Batch) { b.ID, b.Writes = "batch", someWrites() }), true},
	{"commit and release", holding, committing(func(b *runstore.Batch) { b.Writes, b.Release = someWrites(), true }), true},
	{"commit unguarded", holding, func(t testing.TB, s *bigtable.Store, _ runstore.Lease) (any, error) {
		return s.Commit(t.Context(), signal("run", "signal"))
	}, false},
	{"create", nothing, creating(runstore.RunSpec{ID: "run", Status: 2}), false},
	{"create with lease and writes", nothing, creating(runstore.RunSpec{
		ID: "run", Lease: &runstore.LeaseSpec{Owner: "first", TTL: time.Minute, Grant: "first grant"}, Writes: someWrites(),
	}), false},
	{"create anew", purged, creating(runstore.RunSpec{ID: "run", Writes: someWrites()}), false},
	{"acquire", letGo, acquiring("", runstore.Writes{}), false},
	{"acquire with writes", letGo, acquiring("", someWrites()), false},
	{"preempt", holding, acquiring("test", someWrites()), false},
	{"release", holding, func(t testing.TB, s *bigtable.Store, l runstore.Lease) (any, error) {
		return s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: l.Fence()})
	}, true},
	{"release with writes", holding, func(t testing.TB, s *bigtable.Store, l runstore.Lease) (any, error) {
		return s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: l.Fence(), Writes: someWrites()})
	}, true},
	{"purge", holding, committing(func(b *runstore.Batch) { b.Purge = true }), true},
	{"renew", holding, func(t testing.TB, s *bigtable.Store, l runstore.Lease) (any, error) {
		return s.RenewLease(t.Context(), runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
	}, true},
}
