package runstore

import (
	"slices"
	"time"
)

// Batch is one atomic change of one run: guards and writes. [NewBatch] is its only constructor, so
// a batch without a guard has to declare that explicitly.
type Batch struct {
	// ID makes the batch idempotent. The store remembers at least the last [RememberedBatches]
	// results of a run, and returns the first result to a repeat, even when the guards no longer
	// hold.
	ID  BatchID
	run RunID
	// guards are set only by NewBatch and Require.
	guards Guards
	// Writes are the changes that the batch makes.
	Writes
}

// NewBatch returns a batch on run that is applied only if every guard holds. A batch that needs no
// authority, such as one that appends a signal, passes [Unguarded]. Only guards of versions may differ within
// their kind: a store refuses a batch with two different fences, tokens, seqs or sets of statuses ([ErrInvalid]).
func NewBatch(run RunID, first Guard, more ...Guard) Batch {
	b := Batch{run: run}
	first.addTo(&b.guards)
	b.Require(more...)
	return b
}

// Require adds guards to the batch.
func (b *Batch) Require(guards ...Guard) {
	for _, g := range guards {
		g.addTo(&b.guards)
	}
}

// Run returns the run that the batch changes.
func (b Batch) Run() RunID { return b.run }

// Guards returns the batch's guards, for the adapter that checks the batch.
func (b Batch) Guards() Guards { return b.guards }

// Guard is a condition that must hold at the commit point: a [Fence], [AtToken], [AtVersion],
// [AtSeq], [InStatus] or [Unguarded].
type Guard interface{ addTo(*Guards) }

// Guards combines the guards of a batch. All must hold.
type Guards struct {
	// Fence must be the run's current grant; the zero Fence is no guard.
	Fence Fence
	// Token must be the run's last token; nil is no guard.
	Token *Token
	// Versions must be the current versions of their records.
	Versions []VersionGuard
	// NextSeq must be the seq of the run's next event; 0 is no guard.
	NextSeq Seq
	// Statuses must contain the run's status; empty is no guard.
	Statuses []Status
	// Unguarded is the reason why the batch needs no guard.
	Unguarded string

	twice string // a kind of which two different guards were given, which check refuses
}

// VersionGuard requires a version of a record.
type VersionGuard struct {
	Key     RecordKey
	Version Version
}

// GuardsOf combines guards, for requests that carry a list of them.
func GuardsOf(guards ...Guard) Guards {
	var g Guards
	for _, guard := range guards {
		guard.addTo(&g)
	}
	return g
}

func (f Fence) addTo(g *Guards) {
	g.alone("fence", g.Fence.IsZero() || g.Fence == f)
	g.Fence = f
}

func (t tokenGuard) addTo(g *Guards) {
	g.alone("token", g.Token == nil || *g.Token == Token(t))
	g.Token = (*Token)(&t)
}

func (s seqGuard) addTo(g *Guards) {
	g.alone("seq", g.NextSeq == 0 || g.NextSeq == Seq(s))
	g.NextSeq = Seq(s)
}

func (s statusGuard) addTo(g *Guards) {
	g.alone("status", len(g.Statuses) == 0 || slices.Equal(slices.Sorted(slices.Values(g.Statuses)), slices.Sorted(slices.Values(s))))
	g.Statuses = s
}

// alone records that a guard of a kind differs from the one before, unless ok.
func (g *Guards) alone(kind string, ok bool) {
	if !ok {
		g.twice = kind
	}
}

func (v VersionGuard) addTo(g *Guards) { g.Versions = append(g.Versions, v) }
func (u unguarded) addTo(g *Guards)    { g.Unguarded = string(u) }

type (
	tokenGuard  Token
	seqGuard    Seq
	statusGuard []Status
	unguarded   string
)

// AtToken holds while t is the token of the run's last grant, current or ended; 0 means that the
// run was never leased. It is a compare-and-swap on the lease: of several requests for the lease
// that carry the same AtToken at most one is granted, because each grant raises the token. A
// caller that preempts a lease (see [AcquireRequest]) with AtToken ends only the grant that the
// caller has read, never a later one.
//
// Unlike a [Fence], AtToken is no authority over the run: it contains no grant id, so every reader
// of the run can construct one. A write guarded by AtToken alone is a write without a fence.
func AtToken(t Token) Guard { return tokenGuard(t) }

// AtVersion holds while the record under key is at version v; 0 means absent.
func AtVersion(key RecordKey, v Version) Guard { return VersionGuard{key, v} }

// AtSeq holds while next is the seq that the run's next event will get.
func AtSeq(next Seq) Guard { return seqGuard(next) }

// InStatus holds while the run's status is one of those given.
func InStatus(status Status, more ...Status) Guard {
	return statusGuard(append([]Status{status}, more...))
}

// Unguarded declares that a batch needs no guard, and records the reason.
func Unguarded(reason string) Guard { return unguarded(reason) }

// Writes are the changes that one atomic step makes to a run.
type Writes struct {
	// Events are appended to the journal in this order.
	Events []NewEvent
	// Records are put or deleted. No key may appear twice.
	Records []RecordWrite
	// Status, if not nil, becomes the run's status.
	Status *Status
	// Runnable is the time from which the run next wants a driver; the zero When leaves it
	// unchanged.
	Runnable When
	// Release ends the current grant, whatever its holder; the token stays. With a fence as guard
	// it is the holder's own release.
	Release bool
	// Purge removes the run's journal, records and index entries, forgets the ids of its batches
	// and ends its grant, after everything else. The run's token stays. Purge cannot be combined
	// with another write.
	Purge bool

	history *History // of an [Import]
}

// NewEvent is an event to append.
type NewEvent struct {
	// Kind names the type of the data, up to [MaxKind] bytes.
	Kind string
	// Data is up to [MaxEventData] bytes.
	Data []byte
}

// RecordWrite puts or deletes one record.
type RecordWrite struct {
	Key RecordKey
	// Value replaces the record's value, up to [MaxRecordValue] bytes.
	Value []byte
	// Delete removes the record and its index entries. Deleting an absent record does nothing.
	Delete bool
	// Index lists the record's entries in cross-run queues, up to [MaxPlaces]. They replace the
	// previous entries: a put without any removes the record from all queues.
	Index []Place
	// Event is the position, among the batch's events, of the event that explains this change: its
	// seq is stamped on the record. The default is the first event.
	Event int
	// Reserve lists records, up to [MaxRecordWrites], that a later batch of the run will put: the
	// batch that deletes or replaces this record, and no other. A store that limits the records
	// that a run has in queues keeps room for them while this record exists, so that the later
	// batch is not refused with [ErrTooLarge]; other stores ignore the list. Records without an
	// entry in a queue need no room, except [SummaryKey]. The list itself is not stored.
	Reserve []RecordWrite
}

// Place is an entry of a record in a cross-run queue.
type Place struct {
	Index IndexName
	At    When
}

// Append adds an event and returns its position among the batch's events, for [RecordWrite.Event].
func (w *Writes) Append(kind string, data []byte) int {
	w.Events = append(w.Events, NewEvent{Kind: kind, Data: data})
	return len(w.Events) - 1
}

// Put adds a put of a record, with its entries in cross-run queues.
func (w *Writes) Put(key RecordKey, value []byte, places ...Place) {
	w.Records = append(w.Records, RecordWrite{Key: key, Value: value, Index: places})
}

// Delete adds a delete of a record.
func (w *Writes) Delete(key RecordKey) {
	w.Records = append(w.Records, RecordWrite{Key: key, Delete: true})
}

// IsZero reports whether w changes nothing.
func (w Writes) IsZero() bool {
	return len(w.Events) == 0 && len(w.Records) == 0 && w.Status == nil &&
		w.Runnable.IsZero() && !w.Release && !w.Purge && w.history == nil
}

// When is a time that a caller passes to the store: absolute, or relative to the store clock at
// the commit, which the caller need not know. The zero When is unset.
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

// Never returns the time that is never reached.
func Never() When { return When{kind: whenNever} }

// At returns an absolute time, from 1970 to [EndOfTime].
func At(t time.Time) When { return When{kind: whenAt, at: t.UTC().Truncate(TimePrecision)} }

// After returns the store clock at the commit plus d; After(0) is the commit itself.
func After(d time.Duration) When { return When{kind: whenAfter, after: d} }

// IsZero reports whether w is unset.
func (w When) IsZero() bool { return w.kind == whenUnset }

// Resolve returns the time that w denotes when the store clock is at now. Never resolves to the
// zero time.
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

// Offset returns the duration after the commit that w denotes, for an engine that adds it to its
// own clock. relative is false for every other w, which Resolve evaluates without a clock.
func (w When) Offset() (d time.Duration, relative bool) { return w.after, w.kind == whenAfter }

// Committed is the result of a batch.
type Committed struct {
	// FirstSeq and LastSeq are the seqs of the batch's first and last event. Without events,
	// LastSeq is the run's last seq and FirstSeq is 0.
	FirstSeq, LastSeq Seq
	// Time is the store clock of the commit: the time of its events and records.
	Time time.Time
	// Versions are the records' versions after the batch, in the order of Writes.Records; 0 for a
	// deleted record.
	Versions []Version
	// Replayed is true when this is the result of an earlier batch of the same id.
	Replayed bool
}
