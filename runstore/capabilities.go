package runstore

import (
	"context"
	"time"
)

// The interfaces in this file are optional. An adapter implements those that
// its engine can keep; callers find them by type assertion, and the conformance
// suite reports which there are.

// MultiCommitter commits batches of several runs in one atomic step.
type MultiCommitter interface {
	// CommitMulti applies all batches or none: up to [MaxMultiBatches], each of
	// another run. The error is that of the first batch whose guards do not hold.
	//
	// Batches with ids of one CommitMulti are one write. As long as the store
	// remembers the id of any of them as part of it, a repeat (the same runs with
	// the same ids, in whatever order) applies nothing, whatever became of the
	// other runs since, even if they are gone. A run that remembers its part is
	// answered with its first result; the result of a run that has forgotten it is
	// zero but for Replayed. Where some batches have ids, those without belong to
	// the write too: their runs count with an empty id, and remember nothing.
	//
	// An id that its run remembers from another commit, alone or with other runs,
	// is answered with that first result, and the other batches are judged and
	// applied on their own. A commit whose batches all lack ids is never a repeat.
	CommitMulti(ctx context.Context, batches []Batch) ([]Committed, error)
}

// Notifier wakes those who wait for commits, instead of letting them poll.
type Notifier interface {
	// Wakeups returns a channel that holds a value soon after a commit of this or
	// another handle. Values are coalesced and may be lost with a connection:
	// a wake-up is a hint, and polling at a slower pace is the guarantee. The
	// channel lives until ctx ends.
	Wakeups(ctx context.Context) (<-chan struct{}, error)
}

// RunNotifier wakes those who wait for one run, for its lease say, instead of letting them poll.
type RunNotifier interface {
	// RunWakeups returns a channel that holds a value soon after a write to the run of the kind
	// that is asked for. Heartbeats and refused writes wake nobody, and nor does time: a lease
	// expires unannounced. The run need not exist.
	//
	// A write of this process wakes at once, whatever handle made it. One of another process
	// wakes within tens of milliseconds where the engine tells of it (Postgres and AlloyDB, but
	// not behind a proxy that pools transactions; SQLite, where a write to another run may wake,
	// too), and not at all elsewhere. Values are coalesced, may be spurious and may be lost:
	// polling at a slow pace is the guarantee. The channel lives until ctx ends.
	RunWakeups(ctx context.Context, id RunID, on WakeOn) (<-chan struct{}, error)
}

// WakeOn is the kind of writes that wake who waits for a run.
type WakeOn int

const (
	// OnWrite is every write: commits, grants, releases, the creation, a purge, and a raise of
	// the epoch.
	OnWrite WakeOn = iota
	// OnRelease is what frees the run's lease before its expiry: a release, a purge, and a raise
	// of the epoch.
	OnRelease
)

// EpochManager reports and raises the store's epoch (I2). Operators do both with the command
// tapestore epoch.
type EpochManager interface {
	// Epochs returns the store's epochs, the current one last. It is empty
	// while the store is in epoch 0.
	Epochs(ctx context.Context) ([]EpochChange, error)
	// RaiseEpoch starts a new epoch, for a reason that is stored with it. Every
	// grant made before is ended: its fence is refused from now on. Feed positions
	// go on above those of before, and above those of the events that the store may have
	// lost, so a reader that had seen these misses none of those to come.
	RaiseEpoch(ctx context.Context, reason string) (Epoch, error)
}

// EpochChange tells when and why an epoch began.
type EpochChange struct {
	Epoch  Epoch
	At     time.Time
	Reason string
}

// StaleReader reads from a replica. Leases, tokens, versions and positions are
// never read that way.
type StaleReader interface {
	// ReadJournalStale is ReadJournal of a state that is at most bound old. Event.Position
	// is 0.
	ReadJournalStale(ctx context.Context, id RunID, from Seq, limit int, bound time.Duration) ([]Event, error)
	// ScanIndexStale tells what ScanIndex would have returned from a state that is at most
	// bound old: candidates for a claim, which decides, or for a read.
	ScanIndexStale(ctx context.Context, q IndexQuery, bound time.Duration) ([]Candidate, error)
}

// Candidate is an entry of an index that was true when a replica heard of it.
type Candidate struct {
	Run RunID
	// Key is the record's that is placed there; "" for the indexes of runs.
	Key RecordKey
	// At is the entry's time in the index.
	At time.Time
	// Cursor resumes behind this entry, in stale scans and others.
	Cursor Cursor
}

// ToCandidates is for an adapter whose stale scans read as its others do: what a
// candidate does not tell stays away from callers.
func ToCandidates(entries []IndexEntry) []Candidate {
	var all []Candidate
	for _, e := range entries {
		all = append(all, Candidate{Run: e.Run, Key: e.Record.Key, At: e.At, Cursor: e.Cursor})
	}
	return all
}

// StrictCommitter is a store whose engine reads its clock in the atomic step of a write.
//
// A lease that was acquired as strict is over at its expiry for its holder too (I3): what
// the holder sends afterwards is refused by every store. A write that was sent before and
// is still under way at the expiry, behind a lock or in flight, is refused by a
// StrictCommitter when it reaches the engine. Any other store read the engine's clock
// before it sent the write: it sends no request of the write after the expiry, but one
// that is under way then may still be applied, whole, until a later grant is made. After
// that the token keeps it out, as on every store.
type StrictCommitter interface {
	// StrictAtCommit reports whether the store keeps what a StrictCommitter promises.
	StrictAtCommit() bool
}

// Describer tells what a store runs on, for reports.
type Describer interface {
	Describe(ctx context.Context) (Description, error)
}

// Description says what a store runs on.
type Description struct {
	// Engine is the engine's name, as in the URL's scheme.
	Engine string
	// Version is the engine's own.
	Version string
	// Tier is "embedded", "local", "emulator", "container" or "service".
	Tier string
}
