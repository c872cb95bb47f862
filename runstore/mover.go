package runstore

import (
	"context"
	"fmt"
	"time"
)

// Mover reads and writes whole runs, so that they can be moved to another store (package archive).
// It returns what no other read returns: runs that no list shows, the index entries of records, and
// how versions continue. It writes runs with the history that they had in another store.
type Mover interface {
	// ScanRuns returns the ids of the runs that exist, listed and unlisted, in an order that is
	// fixed for the engine: at most limit (1 to [MaxPage]) ids that follow after in this order. An
	// empty after begins the scan; any id resumes one, also the id of a run that was purged since.
	// Every run that exists from the start of the scan to its end is returned. An empty page ends
	// the scan.
	ScanRuns(ctx context.Context, after RunID, limit int) ([]RunID, error)

	// ReadPlaced is ReadRecords for the records whose keys follow after, with their index entries
	// as of the same version. It reads at most limit (1 to [MaxPage]) records, and fewer when they
	// pass [MaxPageBytes]. An empty page ends the read. Error: ErrNotFound when there is no such
	// run.
	ReadPlaced(ctx context.Context, id RunID, after RecordKey, limit int) (PlacedPage, error)

	// Import applies a part of a run's history, atomically, or nothing (I4). It is fenced as Commit
	// is (I3), and wakes readers as Commit does. The events get new positions at the end of the
	// feed.
	//
	// After ErrUnknownOutcome, a part that was applied is recognised by the run's last seq or, without
	// events, by ReadPlaced. The repeat of such a part is ErrConflict.
	//
	// Errors: those of Commit. ErrConflict when the seq of the first event is not that of the run's
	// next event, or when the run has a record of the part already.
	Import(ctx context.Context, part Import) (Committed, error)
}

// PlacedPage is a page of [Mover.ReadPlaced].
type PlacedPage struct {
	// Floor is the version above which the run's next new record begins. It grows whenever a record
	// is deleted that was created after the last deletion, and never falls. A store may raise it
	// further in an import, up to the highest version of the imported records.
	Floor Version
	// Records are ordered by their keys.
	Records []PlacedRecord
}

// PlacedRecord is a record with its entries in cross-run queues.
type PlacedRecord struct {
	Record
	// Index lists the entries, each with an absolute time.
	Index []Place
}

// Import is a part of the history of a run, as another store had it.
//
// The importer holds the run's lease, in an epoch above those of the history. So every token of the
// history is below the token of the importer's fence, tokens only grow across the move (I2), and no
// fence of the other store is ever current in this one.
type Import struct {
	// Fence must be the run's current grant at the commit point.
	Fence Fence
	// Events are appended as they are, except for their positions: up to [MaxEvents], with dense
	// seqs that continue the journal. Their tokens are below that of the fence.
	Events []Event
	// Records are put as they are, with their versions, stamps and index entries: up to
	// [MaxRecordWrites]. The run must have no record of these keys. Versions, and Floor, are at most 2⁵³−1.
	Records []PlacedRecord
	// CreatedAt, if not zero, becomes the run's creation time, and its time in [IndexRuns].
	CreatedAt time.Time
	// Floor raises the version above which new records of the run begin.
	Floor Version
	// Status, if not nil, becomes the run's status.
	Status *Status
	// Runnable is as in [Writes].
	Runnable When
	// Release ends the importer's grant as a revocation ([EndRevoked]), so that the next holder recovers
	// what the last holder in the other store may have left unfinished.
	Release bool
}

// History is what makes a batch a part of an imported history: adapters apply it instead of the
// time of the commit and the fence of the batch. Only [Import.Batch] sets it.
type History struct {
	// Events are those of the batch, with their times, tokens and owners.
	Events []Event
	// Records are those of the batch, with their versions and stamps.
	Records []Record
	// CreatedAt and Floor are those of the [Import].
	CreatedAt time.Time
	Floor     Version
}

// Highest returns the highest version of the history: of its records, or the floor. An engine whose
// purge does not read the records has to remember it, so that versions grow across the purge.
func (h *History) Highest() Version {
	highest := h.Floor
	for _, r := range h.Records {
		highest = max(highest, r.Version)
	}
	return highest
}

// History returns the history that the writes are a part of, nil for ordinary writes. It is for
// adapters that implement [Mover].
func (w Writes) History() *History { return w.history }

// Batch returns the batch that applies the part: with the fence, the next seq and the absence of the
// records as guards, and with a [History]. It is for adapters, which pass it to their own Commit; the
// part was checked.
func (p Import) Batch() Batch {
	b := NewBatch(p.Fence.Run(), p.Fence)
	if len(p.Events) > 0 {
		b.Require(AtSeq(p.Events[0].Seq))
	}
	h := &History{CreatedAt: truncated(p.CreatedAt), Floor: p.Floor}
	for _, e := range p.Events {
		b.Append(e.Kind, e.Data)
		e.Time = truncated(e.Time)
		h.Events = append(h.Events, e)
	}
	for _, r := range p.Records {
		b.Require(AtVersion(r.Key, 0))
		b.Put(r.Key, r.Value, r.Index...)
		r.Created.Time, r.Updated.Time = truncated(r.Created.Time), truncated(r.Updated.Time)
		h.Records = append(h.Records, r.Record)
	}
	b.Status, b.Runnable, b.Release = p.Status, p.Runnable, p.Release
	b.history = h
	return b
}

// truncated returns the time as a store keeps it.
func truncated(t time.Time) time.Time { return t.UTC().Truncate(TimePrecision) }

// maxImportedVersion is 2⁵³−1, more changes than a record can have. Above it there is room for the versions that
// follow.
const maxImportedVersion Version = 1<<53 - 1

// Check checks a part.
func (p Import) Check() error {
	if err := p.Fence.check(); err != nil {
		return err
	}
	for i, e := range p.Events {
		field := fmt.Sprintf("events[%d]", i)
		switch {
		case e.Seq < 1 || e.Seq != p.Events[0].Seq+Seq(i):
			return invalid(field+".seq", "%d is not dense; the first is %d", e.Seq, p.Events[0].Seq)
		case (e.Token == 0) != (e.Owner == ""):
			return invalid(field+".owner", "an event has a token and an owner, or neither")
		}
		if err := firstOf(p.checkToken(field, e.Token), checkOptional(field+".owner", string(e.Owner), MaxOwner),
			checkTime(field+".time", e.Time)); err != nil {
			return err
		}
	}
	for i, r := range p.Records {
		field := fmt.Sprintf("records[%d]", i)
		switch {
		case r.Version < 1 || r.Version > maxImportedVersion:
			return invalid(field+".version", "%d is out of range, the limits are 1 and %d", r.Version, maxImportedVersion)
		case r.Created.Seq < 0 || r.Created.Seq > r.Updated.Seq:
			return invalid(field+".created", "seq %d is negative or above seq %d of the last change", r.Created.Seq, r.Updated.Seq)
		}
		if err := firstOf(p.checkToken(field+".created", r.Created.Token), p.checkToken(field+".updated", r.Updated.Token),
			checkTime(field+".created", r.Created.Time), checkTime(field+".updated", r.Updated.Time)); err != nil {
			return err
		}
		for j, place := range r.Index {
			if place.At.kind != whenAt {
				return invalid(fmt.Sprintf("%s.index[%d].at", field, j), "is no absolute time")
			}
		}
	}
	if !p.CreatedAt.IsZero() {
		if err := checkTime("created at", p.CreatedAt); err != nil {
			return err
		}
	}
	if p.Floor < 0 || p.Floor > maxImportedVersion {
		return invalid("floor", "%d is out of range, the limits are 0 and %d", p.Floor, maxImportedVersion)
	}
	b := p.Batch()
	b.history, b.guards.Versions = nil, nil // the guards repeat the keys of the records
	return b.Check()
}

// checkToken checks a token of the history.
func (p Import) checkToken(field string, t Token) error {
	if t < 0 || t >= p.Fence.token {
		return invalid(field+".token", "%v is not below the token of the fence, %v", t, p.Fence.token)
	}
	return nil
}

func checkTime(field string, t time.Time) error {
	if t.IsZero() {
		return invalid(field, "is missing")
	}
	return At(t).check(field)
}
