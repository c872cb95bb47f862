package tape

import (
	"context"
	"log/slog"
	"time"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// FenceMode selects how a write without a fence is treated.
type FenceMode int

const (
	// FencePresented checks every fence that is presented and accepts writes without one, for
	// clients that do not support fences.
	FencePresented FenceMode = iota
	// FenceRequired refuses writes without a fence if [Authorities] requires one.
	FenceRequired
	// FenceConnection is FenceRequired for a server that presents a fence on behalf of clients that
	// do not support fences: the grant that it returned on their connection.
	FenceConnection
)

// String returns the mode's name on the command line.
func (m FenceMode) String() string {
	return [...]string{"presented", "required", "connection"}[m]
}

// Options configures a Tape; nil means the defaults.
type Options struct {
	// Fence is the fence mode; FencePresented by default.
	Fence FenceMode
	// Logger receives a warning for each stored value that a list leaves out because it cannot be
	// read or answered; slog.Default by default.
	Logger *slog.Logger
}

// Tape runs Tape's state machines over a store. All state is in the store: any number of Tapes, in
// any number of processes, may work on one store.
type Tape struct {
	store runstore.RunStore
	mode  FenceMode
	log   *slog.Logger
	// leftOut limits the log of damaged records.
	leftOut leftOut
	turns   optimistic.Turns[rowID]
	// leads are the turns of steps by intent, by the run that leads them; see leadTurn.
	leads optimistic.Turns[runstore.RunID]
	// claims are the turns of the callers that claim tasks.
	claims optimistic.Turns[runstore.IndexName]
}

// New returns a Tape over store. The caller closes the store.
func New(store runstore.RunStore, opts *Options) *Tape {
	t := &Tape{store: store, log: slog.Default()}
	if opts != nil {
		t.mode = opts.Fence
		if opts.Logger != nil {
			t.log = opts.Logger
		}
	}
	return t
}

// Store returns the store that t works on.
func (t *Tape) Store() runstore.RunStore { return t.store }

// Ping reads the store's clock, to check that the store answers.
func (t *Tape) Ping(ctx context.Context) error {
	_, err := t.store.Now(ctx)
	return err
}

// clampTime limits a caller's time to the range that a store accepts.
func clampTime(at time.Time) time.Time {
	if at.After(runstore.EndOfTime) {
		return runstore.EndOfTime
	}
	return at
}
