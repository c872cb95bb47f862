package crossrun

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// Completed describes a step that was in progress and has been completed.
type Completed struct {
	// ID is the step's id; empty if no step was in progress.
	ID runstore.BatchID
	// Other is the other run.
	Other runstore.RunID
	// Applied reports whether both runs' batches were applied; otherwise neither was.
	Applied bool
	// Result is set if the step was applied.
	Result Result
	// Refusal is the reason why the step was not applied.
	Refusal error
}

// Recover completes the run's step in progress, if any: it is applied on both runs or on neither.
// The holder of the run's lease calls it before anything else; [Acquire] does. It costs one read if
// there is no step in progress. A release in the step ends no later grant.
//
// Errors: runstore.ErrFenced, ErrLeaseExpired or ErrStoreBehind if there is a step to complete and
// the fence is not the current grant's; the current holder completes it then. ErrNotFound if the
// run does not exist. After ErrUnavailable, ErrClosed or ErrUnknownOutcome the step may still be in
// progress; call Recover again. ErrUnsupported if a newer version of this package wrote the intent.
func Recover(ctx context.Context, s runstore.RunStore, f runstore.Fence) (Completed, error) {
	return recoverUnder(ctx, s, f.Run(), func() (runstore.Guard, error) { return f, nil })
}

// Settle completes the run's step in progress as [Recover] does, for a caller that does not hold
// the run's lease. It grants no lease, and ends none but the one under which the step began, if the step
// releases it. The lead's events then carry no token. It costs two reads if there is no step in progress.
//
// Errors: those of [Recover], except those of a fence.
func Settle(ctx context.Context, s runstore.RunStore, run runstore.RunID) (Completed, error) {
	return recoverUnder(ctx, s, run, func() (runstore.Guard, error) {
		// The intent's version proves that the step is still in progress. After a restore of the
		// store versions may repeat, but tokens do not: each step of the new epoch has a later
		// grant.
		head, err := s.GetRun(ctx, run)
		return runstore.AtToken(head.Token), err
	})
}

// recoverUnder completes the step that a run leads. Its last write has the guard that authority
// returns; authority runs before the intent is read.
func recoverUnder(ctx context.Context, s runstore.RunStore, run runstore.RunID, authority func() (runstore.Guard, error)) (Completed, error) {
	for range maxAttempts {
		under, err := authority()
		if err != nil {
			return Completed{}, err
		}
		in, version, err := readIntent(ctx, s, run)
		if err != nil || version == 0 {
			return Completed{}, err
		}
		end, err := complete(ctx, s, under, in, version)
		err = errors.Join(err, end.intentErr)
		switch {
		case err == nil:
			return Completed{ID: in.id, Other: in.other, Applied: end.verdict == verdictApplied, Result: end.result, Refusal: end.reason}, nil
		case errors.Is(err, runstore.ErrConflict): // another caller completed the step, or the run was taken over
			continue
		case fenceLost(err):
			return Completed{}, notApplied(run, err)
		default:
			return Completed{}, err
		}
	}
	return Completed{}, opError(run, runstore.ErrUnavailable, errors.New("other steps of the run came in between every time"))
}

// Acquire acquires a run's lease and completes the step in progress, if any. After it returns
// without an error, no step of an earlier holder changes either of its runs. The request's guards
// are checked, and its writes applied, with the grant, which is before the completion.
//
// Errors: those of runstore.RunStore.AcquireLease, without a lease; those of [Recover], with the
// granted lease, which the caller uses to try again or releases.
func Acquire(ctx context.Context, s runstore.RunStore, req runstore.AcquireRequest) (runstore.Granted, Completed, error) {
	granted, err := s.AcquireLease(ctx, req)
	if err != nil {
		return runstore.Granted{}, Completed{}, err
	}
	completed, err := Recover(ctx, s, granted.Fence())
	return granted, completed, err
}

// Sweep deletes the marks that crashed steps have left on a run and returns their number. Any
// process may call it at any time: it keeps a mark that a step in progress depends on, and a step
// that begins meanwhile puts its mark again. A run has at most one mark for each lead and epoch.
func Sweep(ctx context.Context, s runstore.RunStore, run runstore.RunID) (removed int, err error) {
	for rec, err := range runstore.Records(ctx, s, run, markPrefix) {
		if err != nil {
			return removed, err
		}
		// The mark was read before the intent, so a step that the mark decided is in progress now
		// or over.
		in, version, err := readIntent(ctx, s, leadOf(rec.Key))
		if err != nil && !errors.Is(err, runstore.ErrNotFound) {
			return removed, err
		}
		if version != 0 && in.other == run && in.markKey() == rec.Key {
			continue
		}
		_, err = s.Commit(ctx, deleteMark(run, rec.Key, rec.Version))
		switch {
		case err == nil:
			removed++
		case !errors.Is(err, runstore.ErrConflict):
			return removed, err
		}
	}
	return removed, nil
}
