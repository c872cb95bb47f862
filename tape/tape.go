package tape

import (
	"context"
	"hash/maphash"
	"log/slog"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// FenceMode says what becomes of a write that presents no fence.
type FenceMode int

const (
	// FencePresented checks every fence that is presented and accepts writes
	// without one, for clients that know of no fences.
	FencePresented FenceMode = iota
	// FenceRequired refuses writes without a fence that need one; see [Authorities].
	FenceRequired
	// FenceConnection is FenceRequired for a server that presents, for clients that know of no
	// fences, the grant that it answered on their connection.
	FenceConnection
)

// String returns the mode as it is written on a command line.
func (m FenceMode) String() string {
	return [...]string{"presented", "required", "connection"}[m]
}

// Options adjusts a Tape; nil means the defaults.
type Options struct {
	// Fence is FencePresented by default.
	Fence FenceMode
	// Logger receives a warning for each stored value that a list leaves out because
	// it cannot be read or answered. slog.Default by default.
	Logger *slog.Logger
}

// Tape runs Tape's state machines over a store. It stores nothing elsewhere:
// any number of them, in any number of processes, may work on one store.
type Tape struct {
	store runstore.RunStore
	mode  FenceMode
	log   *slog.Logger
	turns [retryTurns]chan struct{}
	// leads are those of steps by intent, by the run that leads them; see leadTurn.
	leads [retryTurns]chan struct{}
	// claims are the turns of the callers that claim tasks, by reaction and shard.
	claims [retryTurns]chan struct{}
	seed   maphash.Seed
}

// New returns a Tape over store. The caller closes the store.
func New(store runstore.RunStore, opts *Options) *Tape {
	t := &Tape{store: store, log: slog.Default(), seed: maphash.MakeSeed()}
	for i := range t.turns {
		t.turns[i], t.claims[i], t.leads[i] = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	}
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

// Ping asks the store for its clock, to see whether it answers.
func (t *Tape) Ping(ctx context.Context) error {
	_, err := t.store.Now(ctx)
	return err
}

// clampTime keeps a caller's time within what a store accepts as a bound.
func clampTime(at time.Time) time.Time {
	if at.After(runstore.EndOfTime) {
		return runstore.EndOfTime
	}
	return at
}
