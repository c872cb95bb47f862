package bench

import (
	"context"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// Target is an engine on one server, where the parts make the stores that they measure.
type Target struct {
	System System
	// NewStore makes an empty store, or hands out the one at a URL. Its Drop removes what it
	// made.
	NewStore func(ctx context.Context) (Store, error)
	// Strategies are those that contenders for a lease use in addition to the package's own:
	// those of peers, which take turns with them. Peers are their systems.
	Strategies []Strategy
	Peers      []System
	// Close stops the server, if the target started it.
	Close func() error
}

// Store is one store, with the hand-written statements that write the same beside it.
type Store struct {
	// Prefix begins the id of every run that the benchmark makes, so that it finds its own in
	// a store that has others.
	Prefix string
	// Open opens a new handle. The caller closes it.
	Open func(ctx context.Context) (runstore.RunStore, error)
	// Floor opens the hand-written side through the same client, with a pool of the same
	// size; nil where there is none. The caller closes it.
	Floor func(ctx context.Context) (Floor, error)
	// Drop removes the store. Its handles are closed by then.
	Drop func() error
}

// RunID names run i of the benchmark.
func (s Store) RunID(i int) runstore.RunID {
	return runstore.RunID(fmt.Sprintf("%s-%08d", s.Prefix, i))
}

// Floor writes by hand what commits write: with the best statement that keeps the same
// guarantees, and by a bare insert. Its runs are numbered from 0. It is safe for concurrent use;
// the callers for one run are not concurrent unless the Write says so.
type Floor interface {
	// Hold makes the runs 0 to n-1, under a lease each.
	Hold(ctx context.Context, n int) error
	// Commit writes to a run by the best statement: it locks the run, checks the token,
	// assigns the seqs and stores events, the batch id and records.
	Commit(ctx context.Context, run int, w Write) error
	// Insert writes the same bytes as plain rows, without a check.
	Insert(ctx context.Context, run int, w Write) error
	// Stored counts the events that Commit and Insert stored.
	Stored(ctx context.Context) (committed, inserted int, err error)
	// About shows the statement of Commit for a write like w, for the report.
	About(w Write) string
	Close() error
}

// Write is what one commit writes.
type Write struct {
	Events  int    // how many
	Data    []byte // of each event and record
	BatchID string // "" for none
	Key     string // of a record that is put; "" for none
	// New says that the record is guarded to be new; else Commit overwrites it.
	New bool
}
