package crossrun

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// Completed tells of a step that was under way and is over.
type Completed struct {
	// ID is the step's id; empty when there was none under way.
	ID runstore.BatchID
	// Other is the other run.
	Other runstore.RunID
	// Applied tells whether both runs' batches were applied, or none.
	Applied bool
	// Result is set if they were.
	Result Result
	// Refusal tells why they were not.
	Refusal error
}

// Recover completes the step of the run that is under way, if there is one: it is
// applied on both runs or on none. The holder of the run's lease calls it before
// anything else; [Acquire] does. One read where there is nothing to do.
//
// Errors: runstore.ErrFenced, ErrLeaseExpired or ErrStoreBehind when there is a step
// to complete and the fence is not the current grant's: it is the current holder's
// to complete. ErrNotFound: there is no such run. ErrUnavailable, ErrClosed and
// ErrUnknownOutcome: the step may still be under way; call again. ErrUnsupported:
// a newer version of this package has written the intent.
func Recover(ctx context.Context, s runstore.RunStore, f runstore.Fence) (Completed, error) {
	return recoverUnder(ctx, s, f.Run(), func() (runstore.Guard, error) { return f, nil })
}

// Settle completes the step of the run that is under way, as [Recover] does, for a caller that does
// not hold the run's lease. It grants no lease and ends none: the holder, if there is one, goes on.
// The lead's events then carry no token. Two reads where there is nothing to do.
//
// Errors: those of [Recover], but none of a fence.
func Settle(ctx context.Context, s runstore.RunStore, run runstore.RunID) (Completed, error) {
	return recoverUnder(ctx, s, run, func() (runstore.Guard, error) {
		// The intent's version says that the step is still under way. In a store that was set back,
		// versions come again and tokens do not: each step of the new epoch has a later grant.
		head, err := s.GetRun(ctx, run)
		return runstore.AtToken(head.Token), err
	})
}

// recoverUnder completes the step that a run leads. Its last write is made under the guard that
// authority returns, which must be had before the intent is read.
func recoverUnder(ctx context.Context, s runstore.RunStore, run runstore.RunID, authority func() (runstore.Guard, error)) (Completed, error) {
	for range maxAttempts {
		under, err := authority()
		if err != nil {
			return Completed{}, err
		}
		in, version, err := pending(ctx, s, run)
		if err != nil || version == 0 {
			return Completed{}, err
		}
		end, err := complete(ctx, s, under, in, version)
		err = errors.Join(err, end.left)
		switch {
		case err == nil:
			return Completed{ID: in.id, Other: in.other, Applied: end.verdict == applied, Result: end.result, Refusal: end.reason}, nil
		case errors.Is(err, runstore.ErrConflict): // another caller ended it, or the run was taken over
			continue
		case disowned(err):
			return Completed{}, notApplied(run, err)
		default:
			return Completed{}, err
		}
	}
	return Completed{}, opError(run, runstore.ErrUnavailable, errors.New("other steps of the run came in between every time"))
}

// Acquire acquires a run's lease and completes the step that it finds under way.
// Once it has returned without an error, no step of an earlier holder changes
// either of its runs any more. The request's guards are judged, and its writes
// made, with the grant, so before the completion.
//
// Errors: those of runstore.RunStore.AcquireLease, with no lease; those of
// [Recover] with the lease that was granted, to be tried again or released.
func Acquire(ctx context.Context, s runstore.RunStore, req runstore.AcquireRequest) (runstore.Granted, Completed, error) {
	granted, err := s.AcquireLease(ctx, req)
	if err != nil {
		return runstore.Granted{}, Completed{}, err
	}
	completed, err := Recover(ctx, s, granted.Fence())
	return granted, completed, err
}

// Sweep removes the marks that crashed steps have left on a run, and returns how
// many. It may be called at any time by anybody: a mark that a step under way
// depends on stays, and a step that begins meanwhile marks the run again. A run
// has one mark for each lead and epoch at most.
func Sweep(ctx context.Context, s runstore.RunStore, run runstore.RunID) (removed int, err error) {
	for rec, err := range runstore.Records(ctx, s, run, marks) {
		if err != nil {
			return removed, err
		}
		// The mark was read first: a step that it decided is under way now, or over.
		in, version, err := pending(ctx, s, leadOf(rec.Key))
		if err != nil && !errors.Is(err, runstore.ErrNotFound) {
			return removed, err
		}
		if version != 0 && in.other == run && in.markKey() == rec.Key {
			continue
		}
		_, err = s.Commit(ctx, unmark(run, rec.Key, rec.Version))
		switch {
		case err == nil:
			removed++
		case !errors.Is(err, runstore.ErrConflict):
			return removed, err
		}
	}
	return removed, nil
}
