package bench

import (
	"context"
	"fmt"
	"iter"
	"strconv"

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
	// Serial says that the engine runs one transaction at a time, and aborts others.
	Serial bool
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
	// Network makes a network to the store. That to an emulator adds a round trip of 4 ms. Nil
	// means that handles are opened by Open and nothing is counted. The caller closes it.
	Network func(ctx context.Context) (Network, error)
	// Floor opens the hand-written side through the same client, with a pool of the same
	// size; nil where there is none. The store was opened before: it makes the database. The
	// caller closes it.
	Floor func(ctx context.Context) (Floor, error)
	// Drop removes the store. Its handles are closed by then.
	Drop func() error
}

// RunID names run i of the benchmark.
func (s Store) RunID(i int) runstore.RunID {
	return runstore.RunID(fmt.Sprintf("%s-%08d", s.Prefix, i))
}

// Floor writes by hand what commits write: with the best statement that keeps the same
// guarantees, and by a bare insert. Its runs are numbered from 0. Commit and Insert are safe for
// concurrent use, also for one run.
type Floor interface {
	// Hold makes the runs 0 to n-1, under a lease each, in the place of those of the call
	// before.
	Hold(ctx context.Context, n int) error
	// Commit writes to a run by the best statement: it locks the run, checks the token,
	// assigns the seqs and stores events, the batch id and records.
	Commit(ctx context.Context, run int, w Write) error
	// Insert writes the same bytes as plain rows, without a check.
	Insert(ctx context.Context, run int, w Write) error
	// Stored counts the events that Commit and Insert stored since Hold.
	Stored(ctx context.Context) (committed, inserted int, err error)
	// About shows the statement of Commit for a write like w, for the report.
	About(w Write) string
	Close() error
}

// RecordCounter is a Floor that counts records as well.
type RecordCounter interface {
	// StoredRecords counts the puts of records that Commit and Insert stored since Hold: the
	// sum of the records' versions.
	StoredRecords(ctx context.Context) (committed, inserted int, err error)
}

// Write is what one commit writes.
type Write struct {
	Events  int    // how many
	Data    []byte // of each event and record
	BatchID string // "" for none
	Key     string // of a record that is put; "" for none
	// Records is how many records are put under keys that begin with Key; 0 means one if
	// there is a Key.
	Records int
	// New says that the records are guarded to be new; else Commit overwrites them.
	New bool
}

// Keys iterates over the keys of the records.
func (w Write) Keys() iter.Seq[string] {
	return func(yield func(string) bool) {
		if w.Key == "" || !yield(w.Key) {
			return
		}
		for i := 1; i < w.Records; i++ {
			if !yield(w.Key + "/" + strconv.Itoa(i)) {
				return
			}
		}
	}
}

// puts is the number of records.
func (w Write) puts() int {
	if w.Key == "" {
		return 0
	}
	return max(1, w.Records)
}

// RowKind says what a row of a bare insert holds.
type RowKind string

// The kinds of rows.
const (
	EventRow  RowKind = "e"
	BatchRow  RowKind = "b"
	RecordRow RowKind = "r"
)

// Rows is the number of rows of a bare insert: one for each event, id and record.
func (w Write) Rows() int {
	n := w.Events + w.puts()
	if w.BatchID != "" {
		n++
	}
	return n
}

// EachRow calls do with each row of a bare insert until it returns an error. name is the id or the
// key.
func (w Write) EachRow(do func(kind RowKind, name string, data []byte) error) error {
	for range w.Events {
		if err := do(EventRow, "", w.Data); err != nil {
			return err
		}
	}
	if w.BatchID != "" {
		if err := do(BatchRow, w.BatchID, []byte{}); err != nil {
			return err
		}
	}
	for key := range w.Keys() {
		if err := do(RecordRow, key, w.Data); err != nil {
			return err
		}
	}
	return nil
}
