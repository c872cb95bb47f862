package lease

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

var (
	// ErrLost: the lease was lost while the work ran. Every [LostError] matches
	// it.
	ErrLost = errors.New("lease lost")
	// ErrExpired: no renewal succeeded for as long as the lease was trusted. The
	// store may have given the run to somebody else since, or not.
	ErrExpired = errors.New("no renewal succeeded within the trusted time")
	// ErrEnded is the cause with which the work's context ends when the work has
	// returned, for what the work left running.
	ErrEnded = errors.New("the work under the lease has ended")
)

// LostError tells why a lease was lost. It is the cause of the work's context
// and matches [ErrLost], and one of:
//
//   - [ErrExpired], when renewals failed until the trusted time was over;
//   - the store's definite refusal: runstore.ErrFenced (with
//     *runstore.FencedError, which names the new holder), ErrNotFound,
//     ErrLeaseExpired (strict leases), ErrStoreBehind, ErrClosed…
type LostError struct {
	Run   runstore.RunID
	Token runstore.Token
	// Reason is ErrExpired or the error with which the store refused.
	Reason error
	// Last is the error of the last renewal before an expiry, nil if none was
	// answered. It is not part of the error's tree: a holder that lost its lease
	// must not be taken for one whose context timed out, or who may try again.
	Last error
}

// Error implements error.
func (e *LostError) Error() string {
	s := fmt.Sprintf("%v: run %.64q, token %v: %v", ErrLost, string(e.Run), e.Token, e.Reason)
	if e.Last != nil {
		s += fmt.Sprintf(" (the last one: %v)", e.Last)
	}
	return s
}

// Is matches ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the reason.
func (e *LostError) Unwrap() error { return e.Reason }

// ReleaseError tells that the work ended but its lease could not be released.
// Final writes given to [Held.ReleaseWith] were not applied, unless
// runstore.OutcomeOf says that this is unknown. A lease that was not released
// ends by expiry or takeover.
type ReleaseError struct {
	Run   runstore.RunID
	Token runstore.Token
	Err   error
}

// Error implements error.
func (e *ReleaseError) Error() string {
	return fmt.Sprintf("lease on run %.64q, token %v, was not released: %v", string(e.Run), e.Token, e.Err)
}

// Unwrap returns the store's error.
func (e *ReleaseError) Unwrap() error { return e.Err }
