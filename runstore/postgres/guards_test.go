package postgres_test

import (
	"errors"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// A token guard holds or not beside a fence that holds, also in an append of events, which
// without the guard has a statement of its own.
func TestTokenGuardBesideAFence(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "other"}); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, address)
	for token, want := range map[runstore.Token]error{
		lease.Token - 1: runstore.ErrConflict, lease.Token: nil, lease.Token + 1: runstore.ErrStoreBehind,
	} {
		before := stored(t, conn)
		b := appending(lease, "event")
		b.Require(runstore.AtToken(token))
		other := runstore.NewBatch("other", runstore.AtToken(0))
		other.Append("test", []byte("event"))
		_, err := s.Commit(t.Context(), b)
		_, multi := s.CommitMulti(t.Context(), []runstore.Batch{other, b})
		for what, err := range map[string]error{"a batch": err, "a batch among several": multi} {
			if !errors.Is(err, want) || (want == nil) != (err == nil) {
				t.Errorf("%s at token %d: got error %v, want %v", what, token, err, want)
			}
		}
		if after := stored(t, conn); want != nil && after != before {
			t.Errorf("refused writes changed\n%s\nto\n%s", before, after)
		}
	}
}

// An append under a fence, with one other guard or one other write: the guard is judged and the
// write is applied, though the append without it has a statement of its own.
func TestAppendWithOneThingBesides(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	status := runstore.Status(7)
	for name, c := range map[string]struct {
		fill    func(b *runstore.Batch)
		applied func(run runstore.Run) bool // nil: the append is refused
	}{
		"next seq":      {fill: func(b *runstore.Batch) { b.Require(runstore.AtSeq(5)) }},
		"status guard":  {fill: func(b *runstore.Batch) { b.Require(runstore.InStatus(3)) }},
		"version guard": {fill: func(b *runstore.Batch) { b.Require(runstore.AtVersion("key", 9)) }},
		"status": {
			func(b *runstore.Batch) { b.Status = &status },
			func(run runstore.Run) bool { return run.Status == status },
		},
		"runnable": {
			func(b *runstore.Batch) { b.Runnable = runstore.At(runstore.EndOfTime) },
			func(run runstore.Run) bool { return !run.RunnableAt.IsZero() },
		},
		"release": {
			func(b *runstore.Batch) { b.Release = true },
			func(run runstore.Run) bool { return run.Holder.Owner == "" },
		},
		"deletion": {
			func(b *runstore.Batch) { b.Delete(runstore.SummaryKey) },
			func(run runstore.Run) bool { return run.Summary.Version == 0 },
		},
	} {
		lease := hold(t, s, runstore.RunID(name))
		first := appending(lease, "first")
		first.Put(runstore.SummaryKey, nil)
		if _, err := s.Commit(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		before, err := s.GetRun(t.Context(), lease.Run)
		if err != nil {
			t.Fatal(err)
		}
		b := appending(lease, "event")
		c.fill(&b)
		_, err = s.Commit(t.Context(), b)
		after, unread := s.GetRun(t.Context(), lease.Run)
		switch {
		case unread != nil:
			t.Fatal(unread)
		case c.applied == nil:
			if !errors.Is(err, runstore.ErrConflict) || after.LastSeq != before.LastSeq {
				t.Errorf("%s: got error %v and seq %d, want a conflict and %d", name, err, after.LastSeq, before.LastSeq)
			}
		case err != nil || after.LastSeq != before.LastSeq+1 || !c.applied(after):
			t.Errorf("%s: got error %v, and the run is %+v", name, err, after)
		}
	}
}
