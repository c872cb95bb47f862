package tail

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
)

// Store returns the store of t, with writes that wake the followers of their runs at once. All
// writers of this process should use it: other writes are found as if another process had made
// them.
//
// Of the optional capabilities of a store it has only [runstore.MultiCommitter], the one that
// writes to journals.
func (t *Tail) Store() runstore.RunStore {
	s := observed{t.store, t}
	if multi, ok := runstore.As[runstore.MultiCommitter](t.store); ok {
		return observedMulti{s, multi}
	}
	return s
}

// observed is a store that hints at the events of the writes that pass through it.
type observed struct {
	runstore.RunStore
	tail *Tail
}

// wrote hints at the events of a write. A write with an unknown outcome may have appended them.
func (s observed) wrote(id runstore.RunID, w *runstore.Writes, last runstore.Seq, err error) {
	if len(w.Events) == 0 {
		return
	}
	switch outcome := runstore.OutcomeOf(err); {
	case outcome == runstore.Applied && last > 0:
		s.tail.wrote(id, last)
	case outcome != runstore.NotApplied:
		s.tail.suspect(id)
	}
}

func (s observed) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	created, err := s.RunStore.CreateRun(ctx, spec)
	if err != nil || created.New {
		s.wrote(spec.ID, &spec.Writes, created.Run.LastSeq, err)
	}
	return created, err
}

func (s observed) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	granted, err := s.RunStore.AcquireLease(ctx, req)
	s.wrote(req.Run, &req.Writes, granted.Committed.LastSeq, err)
	return granted, err
}

func (s observed) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	renewed, err := s.RunStore.RenewLease(ctx, req)
	s.wrote(req.Fence.Run(), &req.Writes, renewed.Committed.LastSeq, err)
	return renewed, err
}

func (s observed) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	done, err := s.RunStore.ReleaseLease(ctx, req)
	s.wrote(req.Fence.Run(), &req.Writes, done.LastSeq, err)
	return done, err
}

func (s observed) Commit(ctx context.Context, batch runstore.Batch) (runstore.Committed, error) {
	done, err := s.RunStore.Commit(ctx, batch)
	s.wrote(batch.Run(), &batch.Writes, done.LastSeq, err)
	return done, err
}

// observedMulti is observed over a store that commits to several runs at once.
type observedMulti struct {
	observed
	multi runstore.MultiCommitter
}

func (s observedMulti) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	done, err := s.multi.CommitMulti(ctx, batches)
	for i := range batches {
		last := runstore.Seq(0)
		if i < len(done) {
			last = done[i].LastSeq
		}
		s.wrote(batches[i].Run(), &batches[i].Writes, last, err)
	}
	return done, err
}
