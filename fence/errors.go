package fence

import (
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// StaleError reports a token below the highest one that a checker has seen on the resource. It
// matches runstore.ErrFenced, and errors.As finds a *runstore.FencedError in it.
type StaleError struct {
	Resource string
	// Presented is the token that was refused.
	Presented runstore.Token
	// Current is the highest token seen on the resource. The store may have minted higher ones
	// since.
	Current runstore.Token
}

// Error implements error.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%v: token %v was presented for %q, which has seen token %v", runstore.ErrFenced, e.Presented, e.Resource, e.Current)
}

// Unwrap returns the refusal as the store would report it, without a holder.
func (e *StaleError) Unwrap() error {
	return &runstore.FencedError{Presented: e.Presented, Current: e.Current}
}

// FullError reports that a [Memory] has as many resources as it may have and refuses new ones. It
// matches runstore.ErrUnavailable.
type FullError struct {
	Resource string
	// Limit is MemoryOptions.MaxResources.
	Limit int
}

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("%v: no token can be recorded for the new resource %q: the limit is %d resources", runstore.ErrUnavailable, e.Resource, e.Limit)
}

// Is matches runstore.ErrUnavailable.
func (e *FullError) Is(target error) bool { return target == runstore.ErrUnavailable }
