package runstore

import (
	"context"
	"time"
)

// The interfaces in this file are optional. An adapter implements those that its engine can
// guarantee; callers discover them with [As], and the conformance suite reports which are
// implemented.

// As returns the capability T of a store, an interface of this file or an adapter's own type, and
// reports whether the store has it. It looks at the store, then at the store that it wraps, and so
// on: a store that wraps another one and keeps its capabilities has a method Unwrap() RunStore. A
// call to a capability that As found behind a wrapper does not pass through the wrapper, so a
// wrapper that must see every call implements the capability itself, or has no Unwrap. s is a
// RunStore, or a part of one that an interface of the caller's describes.
func As[T any](s any) (capability T, ok bool) {
	for {
		if capability, ok = s.(T); ok {
			return capability, true
		}
		wrapper, wraps := s.(interface{ Unwrap() RunStore })
		if !wraps {
			return capability, false
		}
		s = wrapper.Unwrap()
	}
}

// MultiCommitter commits batches of several runs in one atomic step.
type MultiCommitter interface {
	// CommitMulti applies all batches or none: up to [MaxMultiBatches], each of another run. The
	// error is that of the first batch whose guards do not hold.
	//
	// The batches of one CommitMulti that have ids are one write. As long as the store remembers
	// the id of any of them as part of that write, a repeat (the same runs with the same ids, in
	// any order) applies nothing, whatever has happened to the other runs since, even if they have
	// been purged. For a run that remembers its part, the repeat returns the run's first result;
	// for a run that has forgotten its part, the result is zero except for Replayed. Where some
	// batches have ids, the batches without an id belong to the write too: their runs count with
	// an empty id, and remember nothing.
	//
	// For an id that its run remembers from another commit, alone or with other runs, CommitMulti
	// returns that first result, and checks and applies the other batches on their own. A commit
	// whose batches all lack ids is never a repeat.
	CommitMulti(ctx context.Context, batches []Batch) ([]Committed, error)
}

// Notifier wakes readers that wait for commits, so that they need not poll.
type Notifier interface {
	// Wakeups returns a channel that receives a value soon after a commit of this or another
	// handle. Values are coalesced, and may be lost with a connection: a wake-up is a hint, and
	// only polling at a slower pace is certain. The channel is served until ctx ends.
	Wakeups(ctx context.Context) (<-chan struct{}, error)
}

// RunNotifier wakes callers that wait for one run, for example for its lease, so that they need
// not poll.
type RunNotifier interface {
	// RunWakeups returns a channel that receives a value soon after a write to the run of the kind
	// on. Heartbeats and refused writes cause no wake-up, and neither does the passage of time: a
	// lease expires unannounced. The run need not exist.
	//
	// A write by this process causes a wake-up at once, whatever handle made the write. A write by
	// another process causes one within tens of milliseconds where the engine reports such writes:
	// Postgres and AlloyDB, but not behind a proxy that pools transactions; SQLite, where a write
	// to another run may cause a wake-up too. On other engines it causes none. Values are
	// coalesced, may be spurious and may be lost: only polling at a slow pace is certain. The
	// channel is served until ctx ends.
	RunWakeups(ctx context.Context, id RunID, on WakeOn) (<-chan struct{}, error)
}

// WakeOn is the kind of write that causes a wake-up.
type WakeOn int

const (
	// OnWrite is every write: a commit, a grant, a release, the creation, an import, a purge, and a
	// raise of the epoch.
	OnWrite WakeOn = iota
	// OnRelease is a write that frees the run's lease before its expiry: a release, a commit or an
	// import that releases, a purge, and a raise of the epoch.
	OnRelease
)

// GarbageCollector deletes rows that crashes leave and that neither an operation nor the work in
// the background finds. They cost storage, and no caller ever sees them. Operators run the command
// tapestore gc, as rarely as once a week. A store that does not implement GarbageCollector leaves
// no such rows.
type GarbageCollector interface {
	// CollectGarbage scans the whole store and returns how many rows it deleted. It is safe to run
	// at the same time as any other operation, and to repeat. After an error it may have deleted
	// some of the rows: repeat it.
	CollectGarbage(ctx context.Context) (deleted int, err error)
}

// EpochManager reports and raises the store's epoch (I2). Operators use the command tapestore
// epoch.
type EpochManager interface {
	// Epochs returns the store's epochs, the current one last. It is empty while the store is in
	// epoch 0.
	Epochs(ctx context.Context) ([]EpochChange, error)
	// RaiseEpoch starts a new epoch and stores the reason with it. Every earlier grant ends: its
	// fence is refused from now on. Feed positions continue above all earlier ones, including
	// those of events that the store may have lost. So a reader that has seen lost events misses
	// none of the events to come.
	RaiseEpoch(ctx context.Context, reason string) (Epoch, error)
}

// EpochChange records when and why an epoch began.
type EpochChange struct {
	Epoch  Epoch
	At     time.Time
	Reason string
}

// TermReader reads the terms of a run. The store records them itself, in the step that makes or ends a
// grant, so grants under which nothing was written are among them.
type TermReader interface {
	// ReadTerms returns the terms of the run's last grants in the order of their tokens, the current
	// one last: the last [RememberedTerms], or fewer where their owners, reactors and reasons are so
	// long that all do not fit in 4 KiB, but at least the last four. A purge keeps them: a run that is
	// created again under a purged id has the terms of its former lives. A run that was imported has
	// those of the import and after.
	//
	// Grants that a program made that kept no terms, before an upgrade or at the same time, are
	// absent, or lack the time of their end.
	//
	// Errors: ErrNotFound when there is no such run, as after a purge.
	ReadTerms(ctx context.Context, id RunID) ([]Term, error)
}

// StaleReader reads from a replica. Leases, tokens, versions and positions are never read from a
// replica. The engine measures how old a replica's state is. Where it compares the clocks of two
// servers (AlloyDB), the state may be older than the bound by the difference between the clocks.
type StaleReader interface {
	// ReadJournalStale is ReadJournal on a state that is at most bound old. Event.Position is 0.
	ReadJournalStale(ctx context.Context, id RunID, from Seq, limit int, bound time.Duration) ([]Event, error)
	// ScanIndexStale returns what ScanIndex would have returned from a state that is at most bound
	// old. The entries are candidates: a claim or a read decides whether each is still true.
	ScanIndexStale(ctx context.Context, q IndexQuery, bound time.Duration) ([]Candidate, error)
}

// Candidate is an index entry that was true in the state that the replica had.
type Candidate struct {
	Run RunID
	// Key is the key of the entry's record; "" for the indexes of runs.
	Key RecordKey
	// At is the entry's time in the index.
	At time.Time
	// Cursor resumes after this entry, in stale scans and in others.
	Cursor Cursor
}

// ToCandidates converts entries, for an adapter whose stale scans share code with its other scans,
// so that callers see only what a [Candidate] promises.
func ToCandidates(entries []IndexEntry) []Candidate {
	var all []Candidate
	for _, e := range entries {
		all = append(all, Candidate{Run: e.Run, Key: e.Record.Key, At: e.At, Cursor: e.Cursor})
	}
	return all
}

// StrictCommitter is a store whose engine reads its clock in the atomic step of a write.
//
// A lease that was acquired as strict is over at its expiry for its holder too (I3): every store
// refuses what the holder sends afterwards. Stores differ for a write that was sent before the
// expiry and is still under way then, behind a lock or in flight:
//
//   - A StrictCommitter refuses the write when it reaches the engine.
//   - Any other store reads the engine's clock before it sends the write. It sends no request of
//     the write after the expiry, but a request that is under way at the expiry may still be
//     applied, completely, until a later grant is made. After that the token refuses the write, as
//     on every store.
type StrictCommitter interface {
	// StrictAtCommit reports whether the store gives the guarantee of a StrictCommitter.
	StrictAtCommit() bool
}

// Describer describes what a store runs on, for reports.
type Describer interface {
	Describe(ctx context.Context) (Description, error)
}

// Description describes what a store runs on.
type Description struct {
	// Engine is the engine's name: the scheme of its URLs.
	Engine string
	// Version is the engine's own version.
	Version string
	// Tier is "embedded", "local", "emulator", "container" or "service".
	Tier string
}

// LeaseVector describes how leases are kept, in the terms by which lease systems are compared: of an
// engine, or of a kind of lease that is built on runs.
type LeaseVector struct {
	// Substrate is what is compared and swapped, and by which clock an expiry is judged.
	Substrate string `json:"substrate"`
	// Payload is what is stored with the lease.
	Payload string `json:"payload"`
	// Enforcement is where and when a stale token is refused.
	Enforcement string `json:"enforcement"`
	// Token is what the fencing token is and how it is made.
	Token string `json:"token"`
	// Handoff is how the lease passes to another holder.
	Handoff string `json:"handoff"`
}

// EngineLeases returns the vector of an engine. The contract fixes everything but the substrate and
// the place of the check.
func EngineLeases(substrate, enforcement string) LeaseVector {
	return LeaseVector{
		Substrate:   substrate,
		Payload:     "owner, reactor, grant id, TTL, expiry, strict, stall bound; how the former grant ended",
		Enforcement: enforcement,
		Token:       "64-bit integer, epoch and counter, one more than the run's last; made in the step of the grant",
		Handoff:     "a grant for the successor's id under the holder's fence, in one step",
	}
}
