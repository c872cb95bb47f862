package bench

import (
	"context"
	"fmt"
	"iter"
	"strconv"

	"github.com/tapestore/tapestore/runstore"
)

// Target is an engine on one server, on which the parts create the stores that they measure.
type Target struct {
	System System
	// NewStore creates an empty store, or returns the store at a URL. The store's Drop removes what
	// NewStore created.
	NewStore func(ctx context.Context) (Store, error)
	// Strategies are strategies in addition to the package's own: those of peers, which take turns
	// with the store's. Peers describes their systems.
	Strategies []Strategy
	Peers      []System
	// Rest stops what only the strategies need, such as servers of peers, after the last part that
	// measures strategies. Nil means that there is nothing to stop.
	Rest func() error
	// Serial reports that the engine runs one transaction at a time, and aborts others.
	Serial bool
	// Close stops the server, if the target started it.
	Close func() error
}

// Store is one store, with the hand-written statements for the same writes.
type Store struct {
	// Prefix is the prefix of the id of every run that the benchmark creates, which distinguishes
	// them in a store with other runs.
	Prefix string
	// Open opens a new handle. The caller closes it.
	Open func(ctx context.Context) (runstore.RunStore, error)
	// Network makes a network to the store; to an emulator, it adds a round trip of 4 ms. Nil means
	// that handles are opened by Open and requests are not counted. The caller closes the network.
	Network func(ctx context.Context) (Network, error)
	// Floor opens the hand-written side through the same client, with a pool of the same size; nil
	// where there is none. The store must have been opened before, because that creates the
	// database. The caller closes the floor.
	Floor func(ctx context.Context) (Floor, error)
	// Drop removes the store, after its handles are closed.
	Drop func() error
}

// RunID returns the id of run i of the benchmark.
func (s Store) RunID(i int) runstore.RunID {
	return runstore.RunID(fmt.Sprintf("%s-%08d", s.Prefix, i))
}

// Floor is the hand-written counterpart of a store's commits: the best statement that keeps the
// same guarantees, and a bare insert. Its runs are numbered from 0. Commit and Insert are safe for
// concurrent use, also for the same run.
type Floor interface {
	// Hold creates the runs 0 to n-1, each under a lease. They replace those of the previous call.
	Hold(ctx context.Context, n int) error
	// Commit writes to a run by the best statement: it locks the run, checks the token,
	// assigns the seqs and stores events, the batch id and records.
	Commit(ctx context.Context, run int, w Write) error
	// Insert writes the same bytes as plain rows, without a check.
	Insert(ctx context.Context, run int, w Write) error
	// Stored returns how many events Commit and Insert have stored since Hold.
	Stored(ctx context.Context) (committed, inserted int, err error)
	// About returns the statement of Commit for a write like w, for the report.
	About(w Write) string
	Close() error
}

// RecordCounter is a Floor that also counts records.
type RecordCounter interface {
	// StoredRecords returns how many puts of records Commit and Insert have stored since Hold: the
	// sum of the records' versions.
	StoredRecords(ctx context.Context) (committed, inserted int, err error)
}

// Write describes what one commit writes.
type Write struct {
	Events int    // how many
	Data   []byte // of each record, and of each event unless Each is set
	// Each holds the data of each event; nil means Data for all of them.
	Each    [][]byte
	BatchID string // "" for none
	Key     string // of a record that is put; "" for none
	// Records is the number of records to put, under keys that begin with Key; 0 means one if Key
	// is set.
	Records int
	// New guards the records to be new; otherwise Commit overwrites them.
	New bool
}

// Event returns the data of event i, counted from 0.
func (w Write) Event(i int) []byte {
	if w.Each == nil {
		return w.Data
	}
	return w.Each[i]
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

// puts returns the number of records.
func (w Write) puts() int {
	if w.Key == "" {
		return 0
	}
	return max(1, w.Records)
}

// RowKind is the kind of a row of a bare insert.
type RowKind string

// The kinds of rows.
const (
	EventRow  RowKind = "e"
	BatchRow  RowKind = "b"
	RecordRow RowKind = "r"
)

// Rows returns the number of rows of a bare insert: one for each event, id and record.
func (w Write) Rows() int {
	n := w.Events + w.puts()
	if w.BatchID != "" {
		n++
	}
	return n
}

// EachRow calls do with each row of a bare insert until do returns an error. name is the id or the
// key.
func (w Write) EachRow(do func(kind RowKind, name string, data []byte) error) error {
	for i := range w.Events {
		if err := do(EventRow, "", w.Event(i)); err != nil {
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
