package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// Commit implements adapter.Core.
func (e *engine) Commit(ctx context.Context, batch runstore.Batch) (runstore.Committed, error) {
	done, err := write(ctx, e, func(tx *tx) (runstore.Committed, error) { return tx.commit(batch) })
	if err == nil {
		e.sweepAfter(ctx, batch)
	}
	return done, err
}

// commit applies a batch, or returns the result of a batch that was applied before. For a batch
// that needs no read of the run's row, extend checks the id.
func (tx *tx) commit(b runstore.Batch) (runstore.Committed, error) {
	fast, err := tx.checkedByExtend(b)
	if err != nil {
		return runstore.Committed{}, err
	}
	var r *row
	if !fast {
		if first, err := tx.replay(b.Run(), rules.BatchResult(b.ID)); err != nil || first != nil {
			return first.committed(), err
		}
		if r, err = tx.guarded(b); err != nil {
			return runstore.Committed{}, err
		}
	}
	done, err := tx.applyBatch(r, b, nil)
	var repeated *repeatedError
	if errors.As(err, &repeated) {
		return repeated.first.committed(), nil
	}
	return done, err
}

// checkedByExtend reports whether extend checks what is left of the guards of a batch and its id, so
// that the run's row need not be read first. A guard that does not hold is left to guarded, which
// reports the first of them.
func (tx *tx) checkedByExtend(b runstore.Batch) (bool, error) {
	g := b.Guards()
	if len(g.Statuses) > 0 || g.Token != nil || b.Status != nil || !b.Runnable.IsZero() || b.Release || b.Purge || b.History() != nil {
		return false, nil
	}
	if len(g.Versions) == 0 && g.NextSeq == 0 {
		return true, nil
	}
	at, err := tx.lookUp(b.Run())
	hold := err == nil && (g.NextSeq == 0 || g.NextSeq == at.last+1)
	for version := tx.versions(at.no); hold && len(g.Versions) > 0; g.Versions = g.Versions[1:] {
		var current runstore.Version
		current, err = version(g.Versions[0].Key)
		hold = err == nil && current == g.Versions[0].Version
	}
	return hold, err
}

// applyBatch applies a batch and stores its result. r is the run's row, nil if extend checks the
// fence and the id.
func (tx *tx) applyBatch(r *row, b runstore.Batch, multiCommitID []byte) (runstore.Committed, error) {
	name := rules.BatchResult(b.ID)
	if b.Purge {
		name = "" // a purge deletes all results of the run
	}
	done, err := tx.apply(r, b.Run(), b.Writes, b.Guards().Fence, name)
	if err != nil || name == "" {
		return done, err
	}
	at := tx.store.heads[b.Run()] // extend has stored it
	return done, tx.storeResult(at.no, name, at.results, &storedResult{Committed: done, MultiCommitID: multiCommitID})
}

// guarded returns the run of a batch, or the error of the first guard that does not hold.
func (tx *tx) guarded(b runstore.Batch) (*row, error) {
	r, err := tx.find(b.Run())
	if err != nil {
		return nil, err
	}
	return r, r.Guards(b.Guards(), tx.now, tx.versions(r.no))
}

// versions returns a function that reads the version of a record of the run.
func (tx *tx) versions(run int64) func(runstore.RecordKey) (runstore.Version, error) {
	return func(key runstore.RecordKey) (runstore.Version, error) {
		v, err := tx.c.one(tx.ctx, sqlRecordVersion, run, blob(key))
		if err != nil || v == nil {
			return 0, err
		}
		return runstore.Version(v[0].(int64)), nil
	}
}

// The kinds of statements of extend, a bit set.
const (
	extendUnderFence = 1 << iota
	extendWithName
	extendWithRecords
)

// sqlAppend has the statement of each kind of extend: sql/append.sql with the parts of the kind.
var sqlAppend = func() (all [8]string) {
	for kind := range all {
		var parts []string
		for i, part := range []string{"fenced", "named", "records"} {
			if kind>>i&1 != 0 {
				parts = append(parts, part)
			}
		}
		all[kind] = sqlFiles.Statement("append", parts...)
	}
	return all
}()

// cachedHead is a handle's copy of a part of a run's row. A stale copy is harmless: the statement
// of extend then changes no row.
type cachedHead struct {
	no      int64
	last    runstore.Seq
	tail    int   // bytes
	results int64 // the number of the last result
}

// headCache holds the runs that a handle extended last. Only the leader of the writer uses it.
type headCache map[runstore.RunID]cachedHead

// maxHeads bounds the cache: 8,192 runs. At that size the cache is cleared, which costs one look-up
// for each run.
const maxHeads = 8192

func (h headCache) set(id runstore.RunID, at cachedHead) {
	if len(h) >= maxHeads {
		clear(h)
	}
	h[id] = at
}

// apply applies the writes of a run whose guards, except the fence, hold. It is the only place
// where a run's journal and records change. r is the run's row if the caller has read it; a batch
// that only appends events and changes records does not need it. name is the name under which the
// caller stores the result; empty if it stores none.
func (tx *tx) apply(r *row, id runstore.RunID, w runstore.Writes, f runstore.Fence, name string) (runstore.Committed, error) {
	done := runstore.Committed{Time: tx.now}
	progress := !f.IsZero() && rules.IsProgress(w)
	no, last, err := tx.extend(id, w, f, progress, name)
	if err != nil {
		return done, err
	}
	done.LastSeq = last
	if r != nil && progress {
		r.Holder.ProgressedAt = tx.now
	}
	if n := len(w.Events); n > 0 {
		done.FirstSeq = last - runstore.Seq(n) + 1
	} else {
		tx.changed = true
	}
	history := w.History()
	for i, change := range w.Records {
		if history != nil {
			if err := tx.restore(no, change, history.Records[i]); err != nil {
				return done, err
			}
			done.Versions = append(done.Versions, history.Records[i].Version)
			continue
		}
		stamp := runstore.Stamp{Seq: rules.ExplainingSeq(w, change, done.FirstSeq, last), Time: tx.now, Token: f.Token()}
		version, err := tx.change(no, r, change, stamp)
		if err != nil {
			return done, err
		}
		done.Versions = append(done.Versions, version)
	}
	if w.Status == nil && w.Runnable.IsZero() && !w.Release && !w.Purge && history == nil {
		return done, nil
	}
	r.LastSeq = last
	if history != nil {
		if r.floor = max(r.floor, history.Floor); !history.CreatedAt.IsZero() {
			r.CreatedAt = history.CreatedAt
		}
		if _, err := tx.c.exec(tx.ctx, sqlRunRaiseBound, int64(history.Highest()), no); err != nil {
			return done, err
		}
		tx.changed = true
	}
	if w.Status != nil {
		r.Status = *w.Status
	}
	if !w.Runnable.IsZero() {
		r.RunnableAt = w.Runnable.Resolve(tx.now)
	}
	if w.Release {
		state := rules.Released
		if f.IsZero() || history != nil {
			state = rules.Revoked
		}
		r.Head, tx.changed = r.EndedAt(state, tx.now), true
	}
	if w.Purge {
		return done, tx.purge(r)
	}
	return done, tx.save(r)
}

// extend appends events under a fence, or without one if f is zero, and returns the run's number
// and last seq. It is the fenced write: one statement checks the fence on the run's row, assigns the
// seqs and records the positions of the events. The statement finds the row by its number and its
// last seq, which the handle caches (headCache) and otherwise looks up.
//
// progress reports whether the write counts as progress (I13). The error is a
// repeatedError if a result of that name exists.
func (tx *tx) extend(id runstore.RunID, w runstore.Writes, f runstore.Fence, progress bool, name string) (no int64, last runstore.Seq, err error) {
	events := w.Events
	var where []byte
	var first runstore.Position
	kind := 0
	if !f.IsZero() {
		kind += extendUnderFence
	}
	if name != "" {
		kind += extendWithName
	}
	if len(w.Records) > 0 {
		kind += extendWithRecords
	}
	if n := len(events); n > 0 {
		first = tx.positions(n)
		where = extent{first, n}.append(nil)
	}
	token, owner := driver.Value(int64(f.Token())), blob(f.Owner())
	at, err := tx.advance(id, kind, len(events), where, f, token, owner, progress, name)
	if err != nil {
		tx.next -= runstore.Position(len(events)) // the positions were not used
		return 0, 0, err
	}
	for i, e := range events {
		seq, written, token, owner := at.last-runstore.Seq(len(events)-1-i), tx.at, token, owner
		if h := w.History(); h != nil {
			was := h.Events[i]
			written, token, owner = was.Time.UnixMicro(), int64(was.Token), blob(was.Owner)
		}
		if _, err := tx.c.exec(tx.ctx, sqlAppendEvent, int64(first)+int64(i), at.no, int64(seq), e.Kind, data(e.Data),
			written, token, owner); err != nil {
			return 0, 0, err
		}
	}
	if len(events) > 0 && w.History() != nil { // clock.load reads the time of the last row, which must be of this store
		if _, err := tx.c.exec(tx.ctx, sqlEventMark, int64(tx.positions(1)), tx.at); err != nil {
			return 0, 0, err
		}
	}
	if at.tail >= sealBytes {
		for _, step := range []string{sqlJournalSeal, sqlJournalClearTail} {
			if _, err := tx.c.exec(tx.ctx, step, at.no); err != nil {
				return 0, 0, err
			}
		}
		at.tail = 0
	}
	tx.store.heads.set(id, at)
	return at.no, at.last, nil
}

// advance increases a run's last seq by n, with the statement of a kind.
func (tx *tx) advance(id runstore.RunID, kind, n int, where []byte, f runstore.Fence, token, owner driver.Value, progresses bool, name string) (cachedHead, error) {
	var progressed driver.Value
	if progresses {
		progressed = tx.at
	}
	at, remembered := tx.store.heads[id]
	for {
		if !remembered {
			var err error
			if at, err = tx.lookUp(id); err != nil {
				return cachedHead{}, err
			}
		}
		args := make([]driver.Value, 0, 11)
		args = append(args, int64(at.last)+int64(n), data(where), progressed, at.no, int64(at.last))
		if name != "" {
			args = append(args, at.results, name)
		}
		if !f.IsZero() {
			args = append(args, token, string(f.Grant()), owner, tx.at)
		}
		changed, err := tx.c.exec(tx.ctx, sqlAppend[kind], args...)
		switch {
		case err != nil:
			return cachedHead{}, err
		case changed > 0:
			at.last += runstore.Seq(n)
			at.tail += len(where)
			if name != "" {
				at.results++
			}
			return at, nil
		case !remembered:
			first, err := tx.replay(id, name)
			if err != nil {
				return cachedHead{}, err
			}
			if first != nil {
				return cachedHead{}, &repeatedError{first}
			}
			return cachedHead{}, tx.refused(id, func(r *row) error { return r.Fence(f, tx.now) })
		}
		remembered = false
	}
}

// lookUp reads the part of a run's row that extend needs, and caches it.
func (tx *tx) lookUp(id runstore.RunID) (at cachedHead, err error) {
	v, err := tx.c.one(tx.ctx, sqlAppendLookUp, blob(id))
	if err == nil && v == nil {
		err = runstore.ErrNotFound
	}
	if err != nil {
		delete(tx.store.heads, id)
		return at, err
	}
	at = cachedHead{no: v[0].(int64), last: runstore.Seq(v[1].(int64)), tail: int(v[2].(int64)), results: v[3].(int64)}
	tx.store.heads.set(id, at)
	return at, nil
}

// errDisagree cannot occur as long as the statement and package rules agree. If a change makes them
// disagree, the transaction must be rolled back.
var errDisagree = errors.New("sqlite: the fence check of the statement and that of the rules disagree")

// refused returns the error, according to package rules, of a fenced statement that changed no row.
// It never returns nil.
func (tx *tx) refused(id runstore.RunID, judge func(*row) error) error {
	r, err := tx.find(id)
	if err != nil {
		return err
	}
	if err := judge(r); err != nil {
		return err
	}
	return errDisagree
}
