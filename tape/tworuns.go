package tape

import (
	"context"
	"errors"
	"slices"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// A write to one run can be fenced by the grant of another run, the lead: it is applied only while
// that grant is current. Package crossrun makes it as a step over both runs: one commit if the
// engine commits to two runs at once, otherwise with a write-ahead intent on the lead. Invariants:
//
//  1. Once a grant of the lead was returned, no write under an earlier grant is applied to any run.
//     acquireLease ensures this: it completes a step in progress.
//  2. Once the lead was ended or parked, no write under the released grant is applied either. The
//     commit that releases a lease is guarded by crossrun.Idle, and endStep completes a step that
//     makes this guard fail.

// commitUnder commits b under f, which may be absent, or the fence of b's run or of another run. In
// the last case a store without runstore.MultiCommitter makes seven writes.
//
// Errors: those of a commit; ErrNoSuchRun itself if b's run does not exist, and an error that wraps
// it if the fence's run does not. Once an attempt had an unknown outcome, every error is
// runstore.ErrUnknownOutcome alone, so that no caller takes a conflict for a reason to write again.
func (t *Tape) commitUnder(ctx context.Context, f runstore.Fence, b runstore.Batch) (runstore.Committed, error) {
	if f.IsZero() {
		return t.commit(ctx, b)
	}
	if f.Run() == b.Run() {
		b.Require(f)
		return t.commit(ctx, b)
	}
	end, err := t.leadTurn(ctx, f.Run())
	if err != nil {
		return runstore.Committed{}, err
	}
	defer end()
	lead := runstore.NewBatch(f.Run(), f)
	lead.ID = runstore.NewBatchID()
	var lost error // the unknown outcome of the last call that had one
	done, err := optimistic.Repeat(ctx, func() (crossrun.Result, error) {
		done, err := crossrun.Commit(ctx, t.steps(), lead, b)
		if runstore.OutcomeOf(err) == runstore.Unknown {
			lost = err
		}
		return done, err
	})
	switch {
	case err == nil:
		return done.Other, nil
	case lost != nil:
		// The lead may no longer remember the step: then the refusal of a repeat says nothing about the first
		// call, and a conflict may be with the first call's own change.
		return runstore.Committed{}, unknown("step over two runs", f.Run(), lost)
	case errors.Is(err, runstore.ErrNotFound):
		if _, unread := t.store.GetRun(ctx, f.Run()); errors.Is(unread, runstore.ErrNotFound) {
			return runstore.Committed{}, refuse(ErrNoSuchRun, "no such run: that of the fence")
		}
		return runstore.Committed{}, ErrNoSuchRun
	default:
		return runstore.Committed{}, err
	}
}

// leadTurn waits for this process's turn to make a step that a run leads, and returns a function
// that ends the turn. With an intent, a run leads one step at a time: without turns, other steps
// would find it in progress and start over, each time with writes that change nothing. Steps of
// other processes still do.
//
// Errors: runstore.ErrUnavailable if ctx ends first. Nothing is applied.
func (t *Tape) leadTurn(ctx context.Context, lead runstore.RunID) (end func(), err error) {
	if _, multi := runstore.As[runstore.MultiCommitter](t.store); multi {
		return func() {}, nil
	}
	end, err = t.leads.Take(ctx, lead, "step over two runs")
	return end, ofRun(lead, err)
}

// createShared creates the run of a session, a value or a shard, unless it exists. The run is
// created empty, so that repeating the creation adds nothing. The fence is checked first, so a
// zombie creates nothing. The outcome of an error is that of the caller's write, which was not sent:
// it is never unknown.
func (t *Tape) createShared(ctx context.Context, run runstore.RunID, f runstore.Fence) error {
	if err := t.confirm(ctx, f); err != nil {
		return notSent(err)
	}
	_, err := optimistic.Repeat(ctx, func() (runstore.Created, error) {
		return t.store.CreateRun(ctx, runstore.RunSpec{ID: run, Unlisted: true})
	})
	return notSent(err)
}

// steps returns the store that package crossrun writes to. It repeats a write with an id if the
// reply was lost, where crossrun would abandon the step as not applied.
func (t *Tape) steps() runstore.RunStore {
	if _, multi := runstore.As[runstore.MultiCommitter](t.store); multi {
		return t.store // commitUnder itself repeats the single write
	}
	return repeating{t.store}
}

type repeating struct{ runstore.RunStore }

func (s repeating) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if b.ID == "" { // the deletion of a mark: crossrun says if the step has to be repeated
		return s.RunStore.Commit(ctx, b)
	}
	return optimistic.Repeat(ctx, func() (runstore.Committed, error) { return s.RunStore.Commit(ctx, b) })
}

// meetsStep reports whether a write was refused because its run leads a step in progress.
func meetsStep(err error) bool {
	var conflict *runstore.ConflictError
	return errors.As(err, &conflict) && conflict.Key == crossrun.IntentKey
}

// acquireLease acquires a run's lease. Once it has returned, no step of an earlier grant of the run
// changes anything. One round trip if no step is in progress, which is a guard of the grant.
//
// Errors: those of the store. runstore.ErrUnknownOutcome if the lease was granted and the step
// could not be completed: the next call completes it.
func (t *Tape) acquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	acquire := func(req runstore.AcquireRequest) (runstore.Granted, error) {
		return optimistic.Repeat(ctx, func() (runstore.Granted, error) { return t.store.AcquireLease(ctx, req) })
	}
	idle := req
	idle.Guards = append(slices.Clone(req.Guards), crossrun.Idle())
	granted, err := acquire(idle)
	if !meetsStep(err) {
		return granted, err
	}
	if granted, err = acquire(req); err != nil {
		return runstore.Granted{}, err
	}
	if err := t.recoverStep(ctx, granted.Fence()); err != nil {
		return runstore.Granted{}, unknown("step over two runs", req.Run, err)
	}
	return granted, nil
}

// recoverStep completes the step in progress that f's run leads, if any.
func (t *Tape) recoverStep(ctx context.Context, f runstore.Fence) error {
	_, err := optimistic.Repeat(ctx, func() (crossrun.Completed, error) { return crossrun.Recover(ctx, t.steps(), f) })
	return err
}

// endStep completes the step that a run leads, for a write that releases the run's lease. Without a
// fence it does not take the lease, so a driver that holds it keeps it.
func (t *Tape) endStep(ctx context.Context, run runstore.RunID, f runstore.Fence) error {
	if !f.IsZero() {
		return t.recoverStep(ctx, f)
	}
	_, err := optimistic.Repeat(ctx, func() (crossrun.Completed, error) { return crossrun.Settle(ctx, t.steps(), run) })
	return noSuchRun(err)
}
