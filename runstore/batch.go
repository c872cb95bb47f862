package runstore

import (
	"time"
)

// Batch is one atomic change of one run: guards and writes. It is made by
// [NewBatch], so that a batch without any guard has to say so.
type Batch struct {
	// ID makes the batch idempotent. The store remembers at least the last
	// [RememberedBatches] results of a run, and answers a repeat with the first
	// result, also where the guards no longer hold.
	ID  BatchID
	run RunID
	// guards are set by NewBatch and Require only.
	guards Guards
	// Writes are what the batch does.
	Writes
}

// NewBatch starts a batch on run that is applied only if every guard holds.
// A batch that needs no authority (appending a signal) says so with
// [Unguarded].
func NewBatch(run RunID, first Guard, more ...Guard) Batch {
	b := Batch{run: run}
	first.addTo(&b.guards)
	b.Require(more...)
	return b
}

// Require adds guards.
func (b *Batch) Require(guards ...Guard) {
	for _, g := range guards {
		g.addTo(&b.guards)
	}
}

// Run returns the run that the batch changes.
func (b Batch) Run() RunID { return b.run }

// Guards returns the batch's guards, for the adapter that checks them.
func (b Batch) Guards() Guards { return b.guards }

// Guard is a condition that must hold at the commit point: a [Fence], [AtToken],
// [AtVersion], [AtSeq], [InStatus], or [Unguarded].
type Guard interface{ addTo(*Guards) }

// Guards is the sum of a batch's guards. All must hold.
type Guards struct {
	// Fence must be the run's current grant; the zero Fence guards nothing.
	Fence Fence
	// Token must be the run's last token; nil guards nothing.
	Token *Token
	// Versions must be the versions of those records.
	Versions []VersionGuard
	// NextSeq must be the seq of the run's next event; 0 guards nothing.
	NextSeq Seq
	// Statuses must contain the run's status; empty guards nothing.
	Statuses []Status
	// Unguarded is the reason why the batch needs no guard.
	Unguarded string
}

// VersionGuard says which version a record must be at.
type VersionGuard struct {
	Key     RecordKey
	Version Version
}

// GuardsOf sums up guards, for requests that carry a list of them.
func GuardsOf(guards ...Guard) Guards {
	var g Guards
	for _, guard := range guards {
		guard.addTo(&g)
	}
	return g
}

func (f Fence) addTo(g *Guards)        { g.Fence = f }
func (t tokenGuard) addTo(g *Guards)   { g.Token = (*Token)(&t) }
func (v VersionGuard) addTo(g *Guards) { g.Versions = append(g.Versions, v) }
func (s seqGuard) addTo(g *Guards)     { g.NextSeq = Seq(s) }
func (s statusGuard) addTo(g *Guards)  { g.Statuses = append(g.Statuses, s...) }
func (u unguarded) addTo(g *Guards)    { g.Unguarded = string(u) }

type (
	tokenGuard  Token
	seqGuard    Seq
	statusGuard []Status
	unguarded   string
)

// AtToken holds while t is the token of the run's last grant, current or ended; 0 means
// that the run was never leased. It is a compare-and-swap on the lease: of several requests
// for the lease that carry the same AtToken at most one is granted, because each grant
// raises the token. A caller that takes a lease away (see [AcquireRequest]) ends with it
// the grant that it has read, and no later one.
//
// AtToken is no authority over the run, unlike a [Fence]: it names no grant id, so every
// reader of the run can make one. A write under it alone is a write without a fence.
func AtToken(t Token) Guard { return tokenGuard(t) }

// AtVersion holds while the record under key is at version v; 0 means absent.
func AtVersion(key RecordKey, v Version) Guard { return VersionGuard{key, v} }

// AtSeq holds while next is the seq that the run's next event will get.
func AtSeq(next Seq) Guard { return seqGuard(next) }

// InStatus holds while the run's status is one of those given.
func InStatus(status Status, more ...Status) Guard {
	return statusGuard(append([]Status{status}, more...))
}

// Unguarded declares that a batch needs no guard, and why.
func Unguarded(reason string) Guard { return unguarded(reason) }

// Writes are the changes that one atomic step makes to a run.
type Writes struct {
	// Events are appended to the journal in this order.
	Events []NewEvent
	// Records are put or deleted. No key may appear twice.
	Records []RecordWrite
	// Status, if not nil, becomes the run's status.
	Status *Status
	// Runnable is when the run wants a driver next; the zero When leaves it as
	// it is.
	Runnable When
	// Release ends the current grant, whoever holds it; the token stays. With a
	// fence as guard it is the holder's own release.
	Release bool
	// Purge removes the run's journal, records and index entries, forgets the ids
	// of its batches and ends its grant, after everything else. Its token stays. It
	// goes with no other write.
	Purge bool
}

// NewEvent is an event to append.
type NewEvent struct {
	// Kind names what the data is, up to [MaxKind] bytes.
	Kind string
	// Data is up to [MaxEventData] bytes.
	Data []byte
}

// RecordWrite puts or deletes one record.
type RecordWrite struct {
	Key RecordKey
	// Value replaces the record's value, up to [MaxRecordValue] bytes.
	Value []byte
	// Delete removes the record and its index entries. Deleting an absent record
	// does nothing.
	Delete bool
	// Index lists the record's places in cross-run queues, up to [MaxPlaces].
	// They replace those it had: a put without any takes the record out.
	Index []Place
	// Event is the place, among the batch's events, of the one that explains
	// this change: its seq is stamped on the record. The first, by default.
	Event int
	// Reserve lists records, up to [MaxRecordWrites], that a later batch of the run
	// will put, and no other than the one that deletes or replaces this record. A
	// store that limits the records that a run has in queues keeps room for them while
	// this record is there, so that it does not refuse the later batch with
	// [ErrTooLarge]; other stores ignore the list. Records that are to stand in no queue
	// need no room, but for [SummaryKey]. Nothing of the list is stored.
	Reserve []RecordWrite
}

// Place is a record's place in a cross-run queue.
type Place struct {
	Index IndexName
	At    When
}

// Append adds an event and returns its place among the batch's events, for
// [RecordWrite.Event].
func (w *Writes) Append(kind string, data []byte) int {
	w.Events = append(w.Events, NewEvent{Kind: kind, Data: data})
	return len(w.Events) - 1
}

// Put adds a record to put, with its places in cross-run queues.
func (w *Writes) Put(key RecordKey, value []byte, places ...Place) {
	w.Records = append(w.Records, RecordWrite{Key: key, Value: value, Index: places})
}

// Delete adds a record to delete.
func (w *Writes) Delete(key RecordKey) {
	w.Records = append(w.Records, RecordWrite{Key: key, Delete: true})
}

// IsZero reports whether w changes nothing.
func (w Writes) IsZero() bool {
	return len(w.Events) == 0 && len(w.Records) == 0 && w.Status == nil &&
		w.Runnable.IsZero() && !w.Release && !w.Purge
}

// When is a time that is told to the store: absolute, or relative to the store
// clock at the commit, which the caller need not know. The zero When says
// nothing.
type When struct {
	kind  whenKind
	at    time.Time
	after time.Duration
}

type whenKind uint8

const (
	whenUnset whenKind = iota
	whenNever
	whenAt
	whenAfter
)

// Never is the time that does not come.
func Never() When { return When{kind: whenNever} }

// At is an absolute time, from 1970 to [EndOfTime].
func At(t time.Time) When { return When{kind: whenAt, at: t.UTC().Truncate(TimePrecision)} }

// After is the store clock at the commit plus d; After(0) is the commit itself.
func After(d time.Duration) When { return When{kind: whenAfter, after: d} }

// IsZero reports whether w says nothing.
func (w When) IsZero() bool { return w.kind == whenUnset }

// Resolve returns the time that w means when the store clock stands at now.
// Never resolves to the zero time.
func (w When) Resolve(now time.Time) time.Time {
	switch w.kind {
	case whenAt:
		return w.at
	case whenAfter:
		return now.Add(w.after).UTC().Truncate(TimePrecision)
	default:
		return time.Time{}
	}
}

// Offset returns the duration after the commit that w means, for an engine that
// resolves it by itself; relative is false for every other w, which Resolve tells
// without a clock.
func (w When) Offset() (d time.Duration, relative bool) { return w.after, w.kind == whenAfter }

// Committed is the result of a batch.
type Committed struct {
	// FirstSeq and LastSeq are the seqs of the batch's first and last event. With
	// no events LastSeq is the run's last seq and FirstSeq is 0.
	FirstSeq, LastSeq Seq
	// Time is the store clock of the commit: the time of its events and records.
	Time time.Time
	// Versions are the records' versions after the batch, in the order of
	// Writes.Records; 0 for a deleted one.
	Versions []Version
	// Replayed is true when this is the result of an earlier batch of the same
	// id.
	Replayed bool
}
