package postgres_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// change is a write of each kind, with what must be there before it.
type change struct {
	name string
	// before prepares a store and returns the lease on "run".
	before func(t testing.TB, s *postgres.Store) runstore.Lease
	do     func(t testing.TB, s *postgres.Store, l runstore.Lease) (any, error)
	// repeatable writes are sent again without being settled.
	repeatable bool
}

func holding(t testing.TB, s *postgres.Store) runstore.Lease {
	l := hold(t, s, "run")
	b := appending(l, "before")
	b.Put("old", []byte("before"), runstore.Place{Index: "queue", At: runstore.After(time.Hour)})
	commit(t, s, b)
	return l
}

func nothing(testing.TB, *postgres.Store) runstore.Lease { return runstore.Lease{} }

func letGo(t testing.TB, s *postgres.Store) runstore.Lease {
	l := holding(t, s)
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: l.Fence()}); err != nil {
		t.Fatal(err)
	}
	return l
}

func purged(t testing.TB, s *postgres.Store) runstore.Lease {
	l := holding(t, s)
	b := runstore.NewBatch("run", l.Fence())
	b.Purge = true
	commit(t, s, b)
	return l
}

// committing makes a batch under the lease and lets fill say what is in it.
func committing(fill func(b *runstore.Batch)) func(t testing.TB, s *postgres.Store, l runstore.Lease) (any, error) {
	return func(t testing.TB, s *postgres.Store, l runstore.Lease) (any, error) {
		b := runstore.NewBatch("run", l.Fence())
		fill(&b)
		return s.Commit(t.Context(), b)
	}
}

func creating(spec runstore.RunSpec) func(t testing.TB, s *postgres.Store, _ runstore.Lease) (any, error) {
	return func(t testing.TB, s *postgres.Store, _ runstore.Lease) (any, error) {
		return s.CreateRun(t.Context(), spec)
	}
}

func acquiring(preempt string, w runstore.Writes) func(t testing.TB, s *postgres.Store, _ runstore.Lease) (any, error) {
	return func(t testing.TB, s *postgres.Store, _ runstore.Lease) (any, error) {
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
	{name: "append one", before: holding, do: committing(func(b *runstore.Batch) { b.Append("test", []byte("one")) })},
	{name: "append many", before: holding, do: committing(func(b *runstore.Batch) {
		for range 5 {
			b.Append("test", []byte("many"))
		}
	})},
	{name: "commit everything", before: holding, do: committing(func(b *runstore.Batch) {
		b.Writes = someWrites()
		b.Delete("old")
		b.Runnable = runstore.After(time.Minute)
	})},
	{name: "commit a record", before: holding, do: committing(func(b *runstore.Batch) { b.Put("old", []byte("new")) })},
	{name: "commit a status", before: holding, do: committing(func(b *runstore.Batch) {
		status := runstore.Status(3)
		b.Status = &status
	})},
	{name: "commit with an id", before: holding, do: committing(func(b *runstore.Batch) { b.ID, b.Writes = "batch", someWrites() })},
	{name: "commit and release", before: holding, do: committing(func(b *runstore.Batch) { b.Writes, b.Release = someWrites(), true })},
	{name: "commit unguarded", before: holding, do: func(t testing.TB, s *postgres.Store, _ runstore.Lease) (any, error) {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Append("test", []byte("signal"))
		return s.Commit(t.Context(), b)
	}},
	{name: "create", before: nothing, do: creating(runstore.RunSpec{ID: "run", Status: 2})},
	{name: "create with lease and writes", before: nothing, do: creating(runstore.RunSpec{
		ID: "run", Lease: &runstore.LeaseSpec{Owner: "first", TTL: time.Minute, Grant: "first grant"}, Writes: someWrites(),
	})},
	{name: "create with writes", before: nothing, do: creating(runstore.RunSpec{ID: "run", Writes: someWrites()})},
	{name: "create anew", before: purged, do: creating(runstore.RunSpec{ID: "run", Writes: someWrites()})},
	{name: "acquire", before: letGo, do: acquiring("", runstore.Writes{})},
	{name: "acquire with writes", before: letGo, do: acquiring("", someWrites())},
	{name: "preempt", before: holding, do: acquiring("test", someWrites())},
	{name: "release", before: holding, do: func(t testing.TB, s *postgres.Store, l runstore.Lease) (any, error) {
		return s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: l.Fence()})
	}},
	{name: "release with writes", before: holding, do: func(t testing.TB, s *postgres.Store, l runstore.Lease) (any, error) {
		return s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: l.Fence(), Writes: someWrites()})
	}},
	{name: "purge", before: holding, do: committing(func(b *runstore.Batch) { b.Purge = true })},
	{name: "renew", before: holding, repeatable: true, do: func(t testing.TB, s *postgres.Store, l runstore.Lease) (any, error) {
		return s.RenewLease(t.Context(), runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
	}},
}
