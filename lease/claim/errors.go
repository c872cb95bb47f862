package claim

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

var (
	// ErrLost reports that a claim or a hold has ended; see [LostError].
	ErrLost = errors.New("claim has ended")
	// ErrNoCapacity reports that a hold or a smaller capacity does not fit; see [NoCapacityError].
	ErrNoCapacity = errors.New("not enough capacity")
	// ErrNoMessage reports that the queue has no message of that id. It matches
	// runstore.ErrNotFound.
	ErrNoMessage error = &stateError{"no such message", runstore.ErrNotFound}
	// ErrNotDead reports that a message is alive. It matches runstore.ErrConflict.
	ErrNotDead error = &stateError{"the message is not a dead letter", runstore.ErrConflict}
	// ErrNoReservation reports that the capacity has no reservation of that id. It matches
	// runstore.ErrNotFound.
	ErrNoReservation error = &stateError{"no such reservation", runstore.ErrNotFound}
	// ErrCommitted reports that a reservation is committed, so that only Return ends it. It matches
	// runstore.ErrConflict.
	ErrCommitted error = &stateError{"the reservation is committed", runstore.ErrConflict}
	// ErrNotCommitted reports that a reservation is not committed, so that only Cancel ends it. It
	// matches runstore.ErrConflict.
	ErrNotCommitted error = &stateError{"the reservation is not committed", runstore.ErrConflict}
)

// stateError is an error of a kind of package runstore.
type stateError struct {
	text string
	kind error
}

func (e *stateError) Error() string { return e.text }
func (e *stateError) Unwrap() error { return e.kind }

// LostError reports that a claim of a message, or a hold, has ended, so that nothing was applied. It
// matches [ErrLost] and runstore.ErrConflict.
type LostError struct {
	// ID is the id of the message or the reservation.
	ID string
	// Found says what the store has instead: "claimed again", "given back", "acknowledged", "a dead
	// letter", or "gone".
	Found string
	// Owner is the present owner of a message that was claimed again.
	Owner runstore.Owner
}

// Error implements error.
func (e *LostError) Error() string {
	s := fmt.Sprintf("%v: %q is %s", ErrLost, e.ID, e.Found)
	if e.Owner != "" {
		s += fmt.Sprintf(", by %q", string(e.Owner))
	}
	return s
}

// Is matches ErrLost and runstore.ErrConflict.
func (e *LostError) Is(target error) bool { return target == ErrLost || target == runstore.ErrConflict }

// NoCapacityError reports that an amount does not fit. It matches [ErrNoCapacity] and
// runstore.ErrConflict.
type NoCapacityError struct {
	// Requested is the amount of the hold, or the new capacity.
	Requested int64
	// Capacity, Committed and Held are those of the moment; Held contains no expired hold.
	Capacity, Committed, Held int64
	// Holds is the number of holds. At [MaxHolds] no hold is added, whatever its amount.
	Holds int
}

// Error implements error.
func (e *NoCapacityError) Error() string {
	return fmt.Sprintf("%v: %d requested; of %d, %d are committed and %d held by %d holds",
		ErrNoCapacity, e.Requested, e.Capacity, e.Committed, e.Held, e.Holds)
}

// Is matches ErrNoCapacity and runstore.ErrConflict.
func (e *NoCapacityError) Is(target error) bool {
	return target == ErrNoCapacity || target == runstore.ErrConflict
}
