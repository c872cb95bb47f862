package runstore

import (
	"crypto/rand"
	"time"
)

// RunID identifies a run: 1 to [MaxRunID] bytes of any value. Increasing ids cause hot spots on
// distributed engines; random or hashed ids do not.
type RunID string

// Seq is an event's number in its run's journal: 1, 2, 3… without gaps.
type Seq int64

// Version is a record's compare-and-swap counter; 0 means that the record is absent.
type Version int64

// Position is an event's position in the feed of all runs. Positions only grow, are from 1 to
// [MaxPosition], and may have gaps.
type Position int64

// MaxPosition is the highest position of a feed: 2^53 - 1, the highest integer that JavaScript
// clients represent exactly.
const MaxPosition Position = 1<<53 - 1

// Owner names a process or pod for people and logs. It is never an authority: two processes may
// have the same name, and only the token distinguishes them.
type Owner string

// Reactor is the role in which an owner holds a lease: agent, recovery, reconciler, outbox… It may
// be empty.
type Reactor string

// GrantID is the id of one grant of one run's lease. The caller chooses it with [NewGrantID], so
// that the caller can repeat a request whose reply was lost. The id is part of the fence, and so
// as secret as the lease.
//
// A grant id never names a second grant of its run. While the grant is current, a repeat of its
// request returns the grant again, so a restarted process that kept its grant id gets its lease
// back at once. After the grant has ended, a repeat applies nothing, whether the lease is free or
// held or the request preempts, and also after later grants and epochs: a late copy of a request
// never takes the lease. What the repeat returns depends on the request:
//
//   - A repeat of a request with writes returns the first result, with [Granted.Ended] set, for as
//     long as the store remembers that result, as it remembers batch ids ([RememberedBatches]). A
//     purge deletes remembered results.
//   - Any other repeat is refused with [ErrFenced].
//
// A store recognises the run's last grant and at least the [RememberedGrants] before it. It treats
// a repeat of an older request as a new request.
type GrantID string

// BatchID makes a batch idempotent: a repeat with the same id gets the first result. Empty means
// that the batch has no id.
type BatchID string

// RecordKey names a record within its run: 1 to [MaxRecordKey] bytes of any value.
type RecordKey string

// IndexName names a cross-run queue: 1 to [MaxIndexName] bytes of any value.
type IndexName string

// Status is a run's status: a number that the layer above the store defines.
type Status int32

// SummaryKey is the key of a run's summary record. GetRun and the indexes [IndexRuns] and
// [IndexRunnable] return that record with the run, so that listing runs is one read.
const SummaryKey RecordKey = "run"

// The two indexes that the store maintains itself. A record cannot have an entry in them.
const (
	// IndexRuns holds every listed run, ordered by the time of its creation.
	IndexRuns IndexName = "runs"
	// IndexRunnable holds the runs that want a driver and that no live lease covers. An entry's
	// time is the later of RunnableAt and the expiry of the current grant as first granted. A
	// renewal changes no index, so the expiry of a renewed lease may be later than the time of its
	// entry. A scan that finds such an entry due may move the entry to the present expiry, and
	// never beyond it. An entry that moves between two pages of a scan may appear on both; a scan
	// from the newest may miss it. A scan costs what it returns and moves, however many live
	// leases there are.
	IndexRunnable IndexName = "runnable"
)

// NewGrantID returns a fresh, unguessable grant id.
func NewGrantID() GrantID { return GrantID(rand.Text()) }

// NewBatchID returns a fresh batch id.
func NewBatchID() BatchID { return BatchID(rand.Text()) }

// TimePrecision is the resolution of every time in the contract.
const TimePrecision = time.Microsecond

// EndOfTime is the latest time that a store accepts. As the bound of an index scan it selects all
// entries.
var EndOfTime = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)

// Micros converts a time of the contract to microseconds since 1970, the form in which the engines
// store it. The zero time becomes 0.
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
