package lease

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

var (
	// ErrLost reports that the lease was lost while the work ran. Every [LostError] matches it.
	ErrLost = errors.New("lease lost")
	// ErrExpired reports that no renewal succeeded while the lease was trusted, nor in the grace after
	// that. Another holder may
	// or may not have acquired the run since.
	ErrExpired = errors.New("no renewal succeeded in time")
	// ErrEnded is the cause of the work's context after the work has returned. Goroutines that the
	// work left running see it.
	ErrEnded = errors.New("the work under the lease has ended")
	// ErrReplaced reports that a later checkpoint replaced one that no renewal had carried.
	ErrReplaced = errors.New("replaced by a later checkpoint")
)

// LostError reports why a lease was lost. It is the cause of the work's context. It matches
// [ErrLost] and one of:
//
//   - [ErrExpired], when renewals failed until the trusted time was over; Last is the last failure;
//   - the store's definite refusal: runstore.ErrFenced (with *runstore.FencedError, which names the
//     new holder), ErrNotFound, ErrLeaseExpired (strict leases), ErrNoProgress (the work made no
//     progress for longer than the lease's MaxStall), ErrStoreBehind or ErrClosed;
//   - before the work has begun, any other error of a renewal that no repeat mends, such as
//     runstore.ErrInvalid.
type LostError struct {
	Run   runstore.RunID
	Token runstore.Token
	// Reason is ErrExpired or the error with which the store refused.
	Reason error
	// Last is the error of the last renewal before an expiry; nil if no renewal was answered.
	// Unwrap does not return Last: errors.Is must not mistake a lost lease for a timeout or for a
	// retryable fault.
	Last error
}

// Error implements error.
func (e *LostError) Error() string {
	s := fmt.Sprintf("%v: run %q, token %v: %v", ErrLost, string(e.Run), e.Token, e.Reason)
	if e.Last != nil {
		s += fmt.Sprintf(" (the last one: %v)", e.Last)
	}
	return s
}

// Is reports whether target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the reason.
func (e *LostError) Unwrap() error { return e.Reason }

// IsLossOf reports whether err is the [LostError] of the lease l. Work that holds further leases may
// return the loss of one of those.
func IsLossOf(err error, l runstore.Lease) bool {
	var lost *LostError
	return errors.As(err, &lost) && lost.Run == l.Run && lost.Token == l.Token
}

// ReleaseError reports that the work has ended but its lease could not be released. Final writes
// given to [Held.ReleaseWith] were not applied, unless runstore.OutcomeOf reports an unknown
// outcome of the result of [Keeper.Hold]: they may have been applied, for example before a handoff that
// failed. A lease that was not released ends by expiry or takeover.
type ReleaseError struct {
	Run   runstore.RunID
	Token runstore.Token
	Err   error
}

// Error implements error.
func (e *ReleaseError) Error() string {
	return fmt.Sprintf("lease on run %q, token %v, was not released: %v", string(e.Run), e.Token, e.Err)
}

// Unwrap returns the store's error.
func (e *ReleaseError) Unwrap() error { return e.Err }
