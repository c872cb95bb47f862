package sqlite

import (
	"context"
	"math"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// A purge is constant work, followed by deferred deletion of garbage in bounded steps.
//
// Why it is not simple: a run may have millions of rows, and while one transaction deletes them, no
// other operation can write. Deleting everything in the transaction of the purge takes the writer
// for seconds at 10^6 events: BenchmarkPurge reports the time for an event.
//
// Every row of a run contains the run's number. The commit that purges a run gives its row in runs
// a new number and enters the old number in garbage. From then on no read finds the run's other
// rows: places and events are read together with their run, all others by the run's number. A run
// that is created again under the same id has the new number, and never meets a row of the old
// number.
//
// Bulk operations of the writer delete the rows, in turn with the operations of other callers. One
// step deletes about sweepRows rows, and stops after sweepTime. The caller of the purge runs the
// steps one after the other until its deadline, which is the back-pressure that keeps garbage from
// growing. After the deadline the handle continues in the background. What a crash or a failure
// leaves is deleted by the next purge or the next opening.
//
//  1. A number in garbage is in no row of runs, and is never used again: numbers only grow.
//  2. After every step, the remaining rows can be found by the number: the step that deletes an
//     event removes its extent from journal in the same transaction.
//  3. The feed's last position is never used again: an event at that position is replaced by a
//     marker, a row of run 0.

const (
	// sweepRows is how many rows a step deletes: 1,024, which take 3 to 5 ms and fill 50 pages of
	// the log. With 4,096, syncing those pages took longer than deleting the rows. An extent is
	// deleted completely, so a step may delete 1,000 events more, of 8 MiB together.
	sweepRows = 1024
	// sweepTime ends a step early where rows are large or the machine is slow: after 5 ms, about as
	// long as a sync takes.
	sweepTime = 5 * time.Millisecond
)

// stopwatch measures the duration of a step.
var stopwatch localclock.Clock

// purge removes everything of a run but its row, which keeps the token and the floor of later
// versions, the ids of its grants and their terms.
func (tx *tx) purge(r *row) error {
	for _, statement := range []string{sqlJournalSeal, sqlPurgeEnter} {
		if _, err := tx.c.exec(tx.ctx, statement, r.no); err != nil {
			return err
		}
	}
	v, err := tx.c.one(tx.ctx, sqlPurgeRenumber, r.no)
	if err != nil {
		return err
	}
	former := r.no
	r.no, r.floor = v[0].(int64), runstore.Version(v[1].(int64))
	if _, err := tx.c.exec(tx.ctx, sqlPurgeRenumberGrants, r.no, former); err != nil {
		return err
	}
	delete(tx.store.heads, r.ID)
	r.Head = r.EndedAt(rules.Revoked, tx.now)
	r.purged, r.LastSeq = true, 0
	tx.changed = true
	return tx.save(r)
}

// sweepAfter deletes the rows of the runs that one of the batches has purged: in the caller until
// ctx ends, then in the background.
func (e *engine) sweepAfter(ctx context.Context, batches ...runstore.Batch) {
	for _, b := range batches {
		if b.Purge {
			if !e.sweep(ctx) {
				e.background.Go(func() { e.sweep(e.stopped) })
			}
			return
		}
	}
}

// sweep deletes the rows of all runs that were purged before, and reports whether none is left. One
// caller sweeps at a time, so that other operations wait for at most one step. sweep stops when ctx
// ends or the handle is closed.
func (e *engine) sweep(ctx context.Context) (done bool) {
	select {
	case e.sweeping <- struct{}{}:
		defer func() { <-e.sweeping }()
	case <-ctx.Done():
		return false
	case <-e.stopped.Done():
		return false
	}
	upTo, known := int64(math.MaxInt64), false
	for !done {
		if ctx.Err() != nil || e.stopped.Err() != nil {
			return false
		}
		err := e.writer.doBulk(ctx, func(tx *tx) (err error) {
			if !known { // runs that are purged meanwhile are left to their own callers
				v, err := tx.c.one(tx.ctx, sqlPurgeNewest)
				if err != nil {
					return err
				}
				if v[0] == nil {
					done = true
					return nil
				}
				upTo = v[0].(int64)
			}
			done, err = tx.sweepStep(upTo)
			return err
		})
		if err != nil {
			return false
		}
		known = true
	}
	return true
}

// sweepStep runs one step on the oldest purged run with a number up to upTo, and reports whether
// there is none.
func (tx *tx) sweepStep(upTo int64) (done bool, err error) {
	v, err := tx.c.one(tx.ctx, sqlPurgeNext, upTo)
	if err != nil || v == nil {
		return v == nil, err
	}
	run, end := v[0].(int64), stopwatch.Read().Add(sweepTime)
	for rows := int64(0); rows < tx.store.opts.sweepRows && stopwatch.Read().Before(end); {
		n, err := tx.sweepSome(run, tx.store.opts.sweepRows-rows, end)
		if err != nil {
			return false, err
		}
		if n == 0 {
			_, err := tx.c.exec(tx.ctx, sqlPurgeDone, run)
			return false, err
		}
		rows += n
	}
	return false, nil
}

// sweepSome deletes some rows of a purged run and returns how many; 0 if none is left.
func (tx *tx) sweepSome(run, most int64, end localclock.Reading) (n int64, err error) {
	for _, statement := range []string{sqlPurgeEntries, sqlPurgeRecords, sqlPurgeResults} {
		if n, err := tx.c.exec(tx.ctx, statement, run); err != nil || n > 0 {
			return n, err
		}
	}
	v, err := tx.c.one(tx.ctx, sqlPurgeExtentsRead, run)
	if err != nil || v == nil {
		return 0, err
	}
	extents := decodeExtents(bytesOf(v[1]))
	for len(extents) > 0 && n < most && (n == 0 || stopwatch.Read().Before(end)) {
		if err := tx.sweepExtent(run, extents[0]); err != nil {
			return n, err
		}
		n += int64(extents[0].count)
		extents = extents[1:]
	}
	if len(extents) == 0 {
		_, err = tx.c.exec(tx.ctx, sqlPurgeExtentsDelete, run, v[0])
		return n + 1, err
	}
	var left []byte
	for _, e := range extents {
		left = e.append(left)
	}
	_, err = tx.c.exec(tx.ctx, sqlPurgeExtentsKeep, left, run, v[0])
	return n, err
}

// sweepExtent deletes the events of an extent, at most 8 MiB. The feed's last position must not be
// used again, so an event at that position is replaced by a marker.
func (tx *tx) sweepExtent(run int64, e extent) error {
	first, last := int64(e.pos), int64(e.pos)+int64(e.count)-1
	if newest := int64(tx.next) - 1; first <= newest && newest <= last {
		if _, err := tx.c.exec(tx.ctx, sqlPurgeKeepPosition, newest, run); err != nil {
			return err
		}
	}
	_, err := tx.c.exec(tx.ctx, sqlPurgeEvents, first, last, run)
	return err
}
