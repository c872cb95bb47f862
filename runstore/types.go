package runstore

import (
	"crypto/rand"
	"time"
)

// RunID identifies a run: 1 to [MaxRunID] bytes of any value. Ids that only
// grow make hot spots on distributed engines; random or hashed ids do not.
type RunID string

// Seq is an event's place in its run's journal: 1, 2, 3… without gaps.
type Seq int64

// Version is a record's compare-and-swap counter; 0 means that the record is
// absent.
type Version int64

// Position is an event's place in the feed of all runs. Positions only grow,
// are greater than 0, at most [MaxPosition], and may have gaps.
type Position int64

// MaxPosition is the highest position of a feed: clients in JavaScript tell no higher
// integers apart.
const MaxPosition Position = 1<<53 - 1

// Owner names a process or pod for people and logs. It is never an authority:
// two processes may carry one name, and only the token tells them apart.
type Owner string

// Reactor says in which role an owner holds a lease: agent, recovery,
// reconciler, outbox… It may be empty.
type Reactor string

// GrantID is the id of one grant of one run's lease. The caller chooses it with
// [NewGrantID], so that it can repeat a request whose reply was lost. It is part of
// the fence, and so as secret as the lease.
//
// A grant id is used once: it never names a second grant of its run. While the grant
// is current, a repeat of its request returns it again; so a restarted process that kept its
// grant id gets its lease back at once. Once the grant has ended, a repeat applies nothing,
// whether the lease is free, held or the request preempts, and also after later grants and
// epochs: a late copy of a request never takes the lease.
//
//   - A repeat of a request with writes returns the first result, with [Granted.Ended] set,
//     for as long as the store remembers it, as it remembers batch ids
//     ([RememberedBatches]). A purge ends that.
//   - Any other repeat is refused with [ErrFenced].
//
// A store recognises the run's last grant and at least the [RememberedGrants] before it; it
// takes a repeat of an older request for a new one.
type GrantID string

// BatchID makes a batch idempotent: a repeat with the same id gets the first
// result. Empty means that the batch carries none.
type BatchID string

// RecordKey names a record within its run: 1 to [MaxRecordKey] bytes of any
// value.
type RecordKey string

// IndexName names a cross-run queue: 1 to [MaxIndexName] bytes of any value.
type IndexName string

// Status is a run's status: a number whose meaning belongs to the layer above
// the store.
type Status int32

// SummaryKey is the key of the record that travels with its run: GetRun and
// the indexes [IndexRuns] and [IndexRunnable] return it with the run, so that
// listing runs is one read.
const SummaryKey RecordKey = "run"

// The two indexes that the store keeps by itself. No record can be placed in
// them.
const (
	// IndexRuns holds every run, ordered by the time of its creation.
	IndexRuns IndexName = "runs"
	// IndexRunnable holds the runs that want a driver and that no live lease covers.
	// An entry's time is the later of RunnableAt and the expiry of the current grant
	// as it was when the grant was made. A renewal touches no index, so the expiry
	// of a renewed lease may be later than the time of its entry; a scan that finds
	// such an entry due may move it to the present expiry, and never beyond it. An entry that
	// moves between two pages of a scan may be on both; a scan from the newest may miss it.
	// A scan costs what it returns and moves, however many live leases there are.
	IndexRunnable IndexName = "runnable"
)

// NewGrantID returns a fresh, unguessable grant id.
func NewGrantID() GrantID { return GrantID(rand.Text()) }

// NewBatchID returns a fresh batch id.
func NewBatchID() BatchID { return BatchID(rand.Text()) }

// TimePrecision is the resolution of every time in the contract.
const TimePrecision = time.Microsecond

// EndOfTime is later than every time that a store accepts. As the bound of an
// index scan it means: all entries.
var EndOfTime = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)

// Micros converts a time of the contract to microseconds since 1970, the form
// in which the engines keep it. The zero time is 0.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// FromMicros is the inverse of [Micros].
func FromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
