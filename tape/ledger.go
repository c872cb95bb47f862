package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// ledger stores rows of one kind, each in one record, and changes them by compare-and-swap on the
// record's version: a row is read, a transition decides what to write, and one commit writes the
// row with its journal entries if the record is still at the version that was read. A commit that
// loses to another writer changes nothing; the transition then decides again on the new row.
type ledger[R any] struct {
	// decode returns the row of a record.
	decode func(run runstore.RunID, rec runstore.Record) (R, error)
	// encode returns the value of a row's record and its index entries.
	encode func(row R) ([]byte, []runstore.Place)
	// later, if set, returns the room that the record of a row reserves; see room.go.
	later func(row R) []runstore.RecordWrite
}

// step is what a transition writes besides its row. A nil step means that nothing is written.
type step struct {
	// entries are journaled in order. The first explains the change of the row.
	entries []journalEntry
	// raw are events to append verbatim instead of entries. The last explains the change of the
	// row.
	raw []runstore.NewEvent
	// deletes removes the row.
	deletes bool
	// guards must hold at the commit, besides the fence and the row's version.
	guards []runstore.Guard
	// writes are the other changes of the commit. The field Events is ignored.
	writes runstore.Writes
}

type journalEntry struct {
	kind    string
	payload map[string]any
}

// note returns a step with one journal entry.
func note(kind string, payload map[string]any) *step {
	return &step{entries: []journalEntry{{kind, payload}}}
}

// transition returns the row to write and the step that is written with it. found is false if the
// run has no row under the key; row is then the zero row.
type transition[R any] func(row R, found bool) (R, *step, error)

// change applies a transition to the row under key and returns the new row. If there is nothing to
// write it returns the row unchanged, after checking the fence. Two round trips; if nothing is
// written, one more for a fence.
func (l ledger[R]) change(ctx context.Context, t *Tape, run runstore.RunID, f runstore.Fence, key runstore.RecordKey, decide transition[R]) (R, error) {
	read := func() (runstore.Record, bool, error) { return t.readRecord(ctx, run, key) }
	return l.swap(ctx, t, run, f, key, read, decide)
}

// create is change for a row that is probably new: it commits before it reads. The transition must
// not fail for the absent row. One round trip for a new row, two for one that exists.
func (l ledger[R]) create(ctx context.Context, t *Tape, run runstore.RunID, f runstore.Fence, key runstore.RecordKey, decide transition[R]) (R, error) {
	first := true
	read := func() (runstore.Record, bool, error) {
		if first {
			first = false
			return runstore.Record{}, false, nil
		}
		return t.readRecord(ctx, run, key)
	}
	return l.swap(ctx, t, run, f, key, read, decide)
}

func (l ledger[R]) swap(ctx context.Context, t *Tape, run runstore.RunID, f runstore.Fence, key runstore.RecordKey,
	read func() (runstore.Record, bool, error), decide transition[R]) (row R, err error) {
	var none R
	retries, err := t.retries(ctx, key, run)
	if err != nil {
		return none, err
	}
	defer retries.leave()
	for {
		rec, found, err := read()
		if err != nil {
			return none, err
		}
		row = none
		if found {
			if row, err = l.decode(run, rec); err != nil {
				return none, err
			}
		}
		next, s, err := decide(row, found)
		if err != nil {
			return none, err
		}
		if s == nil {
			if retries.n == 0 { // a commit that lost has checked the fence already, before versions
				err = t.confirm(ctx, f)
			}
			return next, err
		}
		b := runstore.NewBatch(run, runstore.AtVersion(key, rec.Version))
		b.Require(s.guards...)
		b.Writes = s.writes
		b.Events = s.raw
		for _, e := range s.entries {
			b.Append(e.kind, compactJSON(e.payload))
		}
		written := runstore.RecordWrite{Key: key, Delete: true}
		if !s.deletes {
			written = l.write(key, next)
		}
		written.Event = max(len(s.raw)-1, 0)
		b.Records = append([]runstore.RecordWrite{written}, b.Records...)
		done, err := t.commitUnder(ctx, f, b)
		switch {
		case err == nil && s.deletes:
			return next, nil
		case err == nil && len(done.Versions) == 0:
			// The lead recognised the repeat of a step over two runs, and does not remember
			// versions.
			return l.reread(ctx, t, run, key, next)
		case err == nil:
			stamp := runstore.Stamp{Seq: done.LastSeq, Time: done.Time}
			if len(s.entries) > 0 {
				stamp.Seq = done.FirstSeq
			}
			rec.Key, rec.Value, rec.Version, rec.Updated = key, written.Value, done.Versions[0], stamp
			if !found {
				rec.Created = stamp
			}
			return l.decode(run, rec)
		case !errors.Is(err, runstore.ErrConflict):
			return none, err
		}
		if err := retries.next(ctx, err); err != nil {
			return none, err
		}
	}
}

// write returns the write of a row under a key.
func (l ledger[R]) write(key runstore.RecordKey, row R) runstore.RecordWrite {
	w := runstore.RecordWrite{Key: key}
	w.Value, w.Index = l.encode(row)
	if l.later != nil {
		w.Reserve = l.later(row)
	}
	return w
}

// reread returns the row under key as stored, or next if it cannot be read.
func (l ledger[R]) reread(ctx context.Context, t *Tape, run runstore.RunID, key runstore.RecordKey, next R) (R, error) {
	rec, found, err := t.readRecord(ctx, run, key)
	if err != nil || !found {
		return next, nil // the row was written; it is gone or unreadable now
	}
	return l.decode(run, rec)
}

// rowID names a row of a run.
type rowID struct {
	run runstore.RunID
	key runstore.RecordKey
}

// retries are the attempts of one operation at changing a row. The operations of this process on one
// row take turns: if several read the same version, only one of them can write. An operation can still
// lose to another process, and to an operation that changes this row during the turn of another row.
// It tries again at once the first time, and pauses before each later attempt.
type retries struct {
	t   *Tape
	row rowID
	end func() // ends the turn; nil before the turn
	n   int
}

// retries waits for the operation's turn. The caller must call leave.
//
// Errors: runstore.ErrUnavailable if ctx ends before. The operation has read and written nothing.
func (t *Tape) retries(ctx context.Context, key runstore.RecordKey, run runstore.RunID) (*retries, error) {
	r := t.retriesAfterLoss(key, run)
	return r, r.takeTurn(ctx)
}

// retriesAfterLoss returns retries whose first attempt does not wait: only an operation that has lost
// waits for its turn. The caller must call leave.
func (t *Tape) retriesAfterLoss(key runstore.RecordKey, run runstore.RunID) *retries {
	return &retries{t: t, row: rowID{run, key}}
}

func (r *retries) takeTurn(ctx context.Context) (err error) {
	r.end, err = r.t.turns.Take(ctx, r.row, "wait for other writers")
	return ofRun(r.row.run, err)
}

// next waits and returns nil, or returns lost, the conflict, if there were too many attempts or ctx
// has ended.
func (r *retries) next(ctx context.Context, lost error) error {
	if r.n++; r.n == optimistic.MaxAttempts {
		return lost
	}
	if r.end == nil && r.takeTurn(ctx) != nil {
		return lost
	}
	if r.n == 1 {
		return nil
	}
	return optimistic.Rest(ctx, r.n-2, lost)
}

// ofRun adds the run to an error of optimistic.Turns.
func ofRun(run runstore.RunID, err error) error {
	if op := (*runstore.OpError)(nil); errors.As(err, &op) {
		op.Run = run
	}
	return err
}

func (r *retries) leave() {
	if r.end != nil {
		r.end()
	}
}
