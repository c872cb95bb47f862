package crossrun

import (
	"errors"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

func opError(run runstore.RunID, kind, cause error) error {
	return &runstore.OpError{Op: "commit over two runs", Run: run, Err: kind, Cause: cause}
}

// pendingError tells that the step is written ahead and that err kept it from its
// end: whoever holds the lease ends it, either way. It matches err too, so that a
// caller that was fenced out knows that it was.
func pendingError(lead runstore.RunID, err error) error {
	return opError(lead, runstore.ErrUnknownOutcome, err)
}

// notApplied tells that err, met before the step was written ahead, kept it from
// being begun. A fenced caller stays fenced; whatever else it was, nothing of the
// step is stored and the caller may repeat it.
func notApplied(lead runstore.RunID, err error) error {
	var fenced *runstore.FencedError
	var behind *runstore.StoreBehindError
	switch {
	case errors.As(err, &fenced):
		return opError(lead, fenced, nil)
	case errors.As(err, &behind):
		return opError(lead, behind, nil)
	case errors.Is(err, runstore.ErrLeaseExpired):
		return opError(lead, runstore.ErrLeaseExpired, nil)
	case runstore.OutcomeOf(err) == runstore.Unknown:
		return opError(lead, runstore.ErrUnavailable, other{err})
	default:
		return err
	}
}

// other is an error of another write than the caller's: it tells what happened
// and lends its caller none of its kinds.
type other struct{ err error }

func (e other) Error() string { return e.err.Error() }
func (e other) Is(target error) bool {
	return !slices.Contains(runstore.Kinds(), target) && errors.Is(e.err, target)
}

// disowned tells whether err says that the fence is not the current grant's, or is
// over.
func disowned(err error) bool {
	return errors.Is(err, runstore.ErrFenced) || errors.Is(err, runstore.ErrLeaseExpired) || errors.Is(err, runstore.ErrStoreBehind)
}

// unjudged tells whether err leaves open what became of a write or whether the
// store looked at it at all.
func unjudged(err error) bool {
	switch runstore.KindOf(err) {
	case runstore.ErrUnknownOutcome, runstore.ErrUnavailable, runstore.ErrCorrupt, runstore.ErrClosed:
		return true
	default:
		return false
	}
}
