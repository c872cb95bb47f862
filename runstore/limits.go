package runstore

import "time"

// The limits of the contract, the same on every engine (I12). Sizes are bytes.
const (
	// MaxRunID is the longest run id.
	MaxRunID = 256
	// MaxOwner is the longest owner, reactor or reason for a preemption.
	MaxOwner = 256
	// MaxGrantID is the longest grant or batch id.
	MaxGrantID = 64
	// MaxRecordKey is the longest record key.
	MaxRecordKey = 1024
	// MaxIndexName is the longest index name.
	MaxIndexName = 256
	// MaxKind is the longest kind of an event.
	MaxKind = 128

	// MaxEventData is the largest payload of one event.
	MaxEventData = 1 << 20
	// MaxRecordValue is the largest value of one record.
	MaxRecordValue = 4 << 20
	// MaxBatchBytes is the largest sum of a batch's payloads, values and keys.
	MaxBatchBytes = 8 << 20

	// MaxEvents is how many events one batch may append.
	MaxEvents = 1000
	// MaxRecordWrites is how many records one batch may put or delete.
	MaxRecordWrites = 256
	// MaxGuards is how many versions and statuses one batch may guard.
	MaxGuards = 256
	// MaxPlaces is how many index places one record may have.
	MaxPlaces = 8
	// MaxMultiBatches is how many batches one CommitMulti may carry.
	MaxMultiBatches = 16

	// MaxPage is the largest limit of a read.
	MaxPage = 1000
	// MaxPageBytes is the size at which a page of a read ends early: the entry that exceeds it is
	// the page's last.
	MaxPageBytes = 4 << 20
	// MaxRecordKeys is how many exact keys one read may name.
	MaxRecordKeys = 256

	// RememberedBatches is the minimum number of results of a run that a store remembers: those of
	// batches with ids, and of grants and releases with writes.
	RememberedBatches = 128

	// RememberedGrants is the minimum number of a run's former grants, those before its last one,
	// that a store recognises by their ids. 64: at 8 bytes an id they take 512 bytes of a run, and
	// a lease that changes hands once a second is remembered for a minute, longer than a request
	// can be in flight.
	RememberedGrants = 64

	// RememberedTerms is how many terms of a run a [TermReader] returns, if their names are short.
	// 32: enough for the takeovers of an incident, and 2 KB of a run.
	RememberedTerms = 32
)

// The limits of a lease's times. A lease that outlives its holder by an hour prevents the recovery
// of its run for an hour, so TTLs are short and holders renew.
const (
	MinTTL = time.Millisecond
	MaxTTL = 30 * time.Minute
	// MaxMaxStall is the longest [LeaseSpec.MaxStall]. 24 h: longer than any step of an agent that
	// should run without a checkpoint.
	MaxMaxStall = 24 * time.Hour
)
