package crossrun

import (
	"errors"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

func opError(run runstore.RunID, kind, cause error) error {
	return &runstore.OpError{Op: "commit over two runs", Run: run, Err: kind, Cause: cause}
}

// pendingError returns the error of a step whose intent is written but which err kept from ending.
// The next holder of the lease completes it, either way. The error also matches err, so that a
// fenced caller finds out.
func pendingError(lead runstore.RunID, err error) error {
	return opError(lead, runstore.ErrUnknownOutcome, err)
}

// notApplied returns the error of a step that err, an error before the intent was written, kept
// from beginning. ErrFenced, ErrStoreBehind and ErrLeaseExpired stay what they are; an unknown
// outcome becomes ErrUnavailable, because nothing of the step is stored and the caller may repeat
// it.
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
		return opError(lead, runstore.ErrUnavailable, foreignError{err})
	default:
		return err
	}
}

// foreignError wraps the error of a write other than the caller's. It keeps the text and hides the
// runstore kinds.
type foreignError struct{ err error }

func (e foreignError) Error() string { return e.err.Error() }
func (e foreignError) Is(target error) bool {
	return !slices.Contains(runstore.Kinds(), target) && errors.Is(e.err, target)
}

// fenceLost reports whether err says that the fence is not the current grant's, or has ended.
func fenceLost(err error) bool {
	return errors.Is(err, runstore.ErrFenced) || errors.Is(err, runstore.ErrLeaseExpired) || errors.Is(err, runstore.ErrStoreBehind)
}

// undecidable reports whether err leaves open whether the write was applied, or whether the store
// evaluated it at all.
func undecidable(err error) bool {
	switch runstore.KindOf(err) {
	case runstore.ErrUnknownOutcome, runstore.ErrUnavailable, runstore.ErrCorrupt, runstore.ErrClosed:
		return true
	default:
		return false
	}
}
