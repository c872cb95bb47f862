package bigtable_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// Every write that appends events has the handle that made it bring these into the feed,
// the first event of a run too. They do not wait for another write, nor for a pass over
// the marks.
func TestEveryWriteReachesTheFeed(t *testing.T) {
	t.Parallel()
	creation := runstore.RunSpec{ID: "run"}
	creation.Writes.Append("test", []byte("first"))
	idle := func(t testing.TB, s *bigtable.Store) runstore.Lease { return hold(t, s, "run") }
	all := append([]change{
		{"create with one event", nothing, creating(creation), false},
		{"append the first event", idle, func(ctx context.Context, s *bigtable.Store, l runstore.Lease) (any, error) {
			return s.Commit(ctx, appending(l, "first"))
		}, true},
		{"release with the first event", idle, func(ctx context.Context, s *bigtable.Store, l runstore.Lease) (any, error) {
			var w runstore.Writes
			w.Append("test", []byte("first"))
			return s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: l.Fence(), Writes: w})
		}, true},
	}, changes...)
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := openBare(t, newTable(t))
			lease := c.before(t, s)
			bigtable.PublishPending(t.Context(), s)
			if _, err := c.do(t.Context(), s, lease); err != nil {
				t.Fatal(err)
			}
			bigtable.PublishPending(t.Context(), s)
			run, err := s.GetRun(t.Context(), "run")
			if errors.Is(err, runstore.ErrNotFound) {
				return // it was purged
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := len(whole(t, s, 0, 10, nil)); n != int(run.LastSeq) {
				t.Errorf("the feed has %d events, want the run's %d", n, run.LastSeq)
			}
		})
	}
}

// Close brings into the feed what the handle committed last, whether or not the handle
// has begun to by itself.
func TestCloseBringsTheLastEventsIntoTheFeed(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, reader := open(t, table), openBare(t, table)
	bigtable.StopWorkers(s)
	hold(t, s, "run")
	hold(t, s, "other")
	commit(t, s, signal("run", "first"))
	commit(t, s, signal("run", "second"))
	commit(t, s, signal("other", "first"))
	if n := len(whole(t, reader, 0, 10, nil)); n != 0 {
		t.Fatalf("the feed has %d events already", n)
	}
	if err := bigtable.CloseAtRest(s, hang); err != nil {
		t.Fatal(err)
	}
	if n := len(whole(t, reader, 0, 10, nil)); n != 3 {
		t.Errorf("the feed has %d events, want 3", n)
	}
}
