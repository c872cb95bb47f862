package spanner

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"cloud.google.com/go/spanner"
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// A purge has two steps. First one mutation marks the run's row (a tombstone): from then on there
// is no run, and scans and the feed omit its remaining rows. Then the rows are deleted in
// transactions of bounded size: by the purging call, by a call that creates the run anew, or by
// the purger (purger.go).
//
// Events are deleted from the last to the first, and each transaction lowers the row's LastSeq.
// So a handle that continues a purge begins where the last one ended, and no transaction scans
// rows that are deleted already. The events' rows in Feed stay, without events, because the
// ranks of other events count them.

// purge marks the run as purged, ends its grant, and deletes the marker rows by which readers
// recognize that the run exists (read.go).
func (e *edit) purge() {
	mark := make([]byte, 16)
	_, _ = rand.Read(mark) // never fails
	h := &e.head
	h.grant(h.rules().EndedAt(rules.Revoked, e.now))
	h.Purging = mark
	h.Created, h.Runnable = spanner.NullTime{}, spanner.NullTime{}
	h.VersionFloor = max(h.VersionFloor, h.VersionTop)
	k := e.g.key
	e.remove("Events", spanner.Key{k.hash, k.run, 0}) // the marker rows
	e.remove("Records", spanner.Key{k.hash, k.run, []byte{}})
}

// purgeBatch is how many events, and how many records, one transaction of a purge deletes. 1000 of
// each are at most 12,000 mutations (nine for a record with its index entries, one for an event,
// and the results in the last transaction); Spanner's limit is 80,000. Tests set [engine.purgeBatch]
// lower.
const purgeBatch = 1000

// purgedBy returns the runs that batches purge.
func purgedBy(batches ...runstore.Batch) (ids []runstore.RunID) {
	for _, b := range batches {
		if b.Purge {
			ids = append(ids, b.Run())
		}
	}
	return ids
}

// afterPurges deletes the rows of the runs that a call has purged, and starts the purger for what is
// left of these and of other purges. failed is the error of the call, whose outcome may be unknown.
// afterPurges returns no error, because the purges themselves are committed already.
func (s *engine) afterPurges(ctx context.Context, failed error, ids []runstore.RunID) {
	for _, id := range ids {
		if failed == nil {
			if err := s.deletePurged(ctx, id, false); err != nil {
				s.opts.Logger.Warn("spanner: the rows of a purged run are still there, and are deleted in the background", "run", id, "error", err)
			}
		}
		s.purger.endClaim(id)
	}
	if len(ids) > 0 && runstore.OutcomeOf(failed) != runstore.NotApplied {
		s.startPurger(minPurgerPause)
	}
}

// deletePurged deletes a purged run's rows, if any are left. If yields is set, it returns
// errContended after a transaction that was aborted.
func (s *engine) deletePurged(ctx context.Context, id runstore.RunID, yields bool) error {
	c := purgeProgress{s: s, key: keyOf(id)}
	for more := true; more; {
		var next purgeProgress
		err := s.retry(ctx, func(ctx context.Context) error {
			begun := false
			_, err := s.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) (err error) {
				if yields && begun {
					return errContended
				}
				begun, next = true, c
				more, err = next.deleteSome(ctx, tx)
				return err
			}, s.transaction("clear"))
			return err
		})
		if err != nil {
			return err
		}
		c = next
	}
	return nil
}

// purgeProgress is the state of the deletion of a purged run's rows, carried from transaction to
// transaction.
type purgeProgress struct {
	s    *engine
	key  runKey
	mark []byte // identifies the purge: a run that was created anew and purged again has another mark
	last []byte // key of the last record that was deleted
}

// deleteSome deletes up to purgeBatch events and records in one transaction. more reports whether
// rows are left.
func (c *purgeProgress) deleteSome(ctx context.Context, tx *spanner.ReadWriteTransaction) (more bool, err error) {
	var h head
	k, most := c.key, c.s.purgeBatch
	row, err := tx.ReadRowWithOptions(ctx, "Runs", spanner.Key{k.hash, k.run}, []string{"Purging", "LastSeq", "CallerWrites"}, c.s.read("purging", 0))
	if spanner.ErrCode(err) == codes.NotFound {
		return false, nil
	}
	if err == nil {
		err = row.ToStructLenient(&h)
	}
	if err != nil || len(h.Purging) == 0 { // another handle has finished the purge
		return false, err
	}
	if !bytes.Equal(h.Purging, c.mark) {
		c.mark, c.last = h.Purging, nil
	}
	var m mutations
	if h.LastSeq > 0 {
		end := h.LastSeq
		h.LastSeq = max(0, end-int64(most))
		m.remove("Events", spanner.KeyRange{Start: spanner.Key{k.hash, k.run, h.LastSeq}, End: spanner.Key{k.hash, k.run, end}, Kind: spanner.OpenClosed})
	}
	records, err := c.records(ctx, tx, most)
	if err != nil {
		return false, err
	}
	for _, r := range records {
		m.remove("Records", spanner.Key{k.hash, k.run, r.Key})
		for i, name := range r.PlaceNames {
			m.remove("Queue", spanner.Key{name, k.shard, r.PlaceTimes[i], r.UpdatedTime.Time, k.hash, k.run, r.Key})
		}
		c.last = r.Key
	}
	more = h.LastSeq > 0 || len(records) == most
	if !more {
		if err := c.endResults(ctx, tx, &m); err != nil {
			return false, err
		}
		h.Purging = nil
		// Count all callers' results as evicted ([request.resultEvicted]). A commit whose reply was
		// lost before the purge is then not applied to the run that is created next.
		h.CallerWrites += c.s.ring
	}
	m.list = append(m.list, spanner.Update("Runs", []string{"RunHash", "Run", "LastSeq", "Purging", "CallerWrites"}, []any{k.hash, k.run, h.LastSeq, h.Purging, h.CallerWrites}))
	return more, tx.BufferWrite(m.list)
}

// records reads the next records to delete.
func (c *purgeProgress) records(ctx context.Context, tx *spanner.ReadWriteTransaction, most int) (records []record, err error) {
	rows := spanner.KeyRange{Start: spanner.Key{c.key.hash, c.key.run, stored(c.last)}, End: spanner.Key{c.key.hash, c.key.run}, Kind: spanner.OpenClosed}
	columns := []string{"Key", "UpdatedTime", "PlaceNames", "PlaceTimes"}
	err = tx.ReadWithOptions(ctx, "Records", rows, columns, c.s.read("clear", most)).Do(func(row *spanner.Row) error {
		records = append(records, record{})
		return row.ToStructLenient(&records[len(records)-1])
	})
	return records, err
}

// endResults deletes the results under callers' ids and marks the others as ended. The latter are
// kept for calls whose commit had an ambiguous outcome, the purge among them. No call lasts longer
// than an hour ([Options.RetryTimeout]); the table's row deletion policy deletes the rows after a
// day.
func (c *purgeProgress) endResults(ctx context.Context, tx *spanner.ReadWriteTransaction, m *mutations) error {
	m.remove("Writes", spanner.Key{c.key.hash, c.key.run, true}.AsPrefix())
	rows := tx.ReadWithOptions(ctx, "Writes", spanner.Key{c.key.hash, c.key.run, false}.AsPrefix(), []string{"Slot", "Time"}, c.s.read("clear", 0))
	return rows.Do(func(row *spanner.Row) error {
		var slot int64
		var at time.Time
		if err := row.Columns(&slot, &at); err != nil {
			return err
		}
		m.add(spanner.Update("Writes", []string{"RunHash", "Run", "Callers", "Slot", "Ended"}, []any{c.key.hash, c.key.run, false, slot, at}), nil)
		return nil
	})
}

// feedKey returns the key columns of a row of Feed, for a feed of n shards.
func feedKey(committed any, slot, n int64) []column {
	return []column{{"Shard", feedShard(slot, n)}, {"Committed", committed}, {"Slot", slot}}
}

// finishPurges deletes the rows of all purged runs that no call has claimed, and returns the first
// error, errContended only if there is no other. It goes on after an error, unless that comes from
// the list of runs. If a call has claimed a run, the purger makes another pass.
func (s *engine) finishPurges(ctx context.Context) (failed error) {
	for after := []byte(nil); ; {
		page, err := s.listPurged(ctx, after)
		if err != nil {
			return err
		}
		for _, run := range page {
			id := runstore.RunID(run.Run)
			if s.purger.claimed(id) { // the call may still fail
				s.purger.want()
				continue
			}
			if err := s.deletePurged(ctx, id, true); err != nil && (failed == nil || errors.Is(failed, errContended)) {
				failed = err
			}
			if ctx.Err() != nil {
				return failed
			}
		}
		if len(page) < s.purgedPage {
			return failed
		}
		after = page[len(page)-1].Purging
	}
}

// purgedPage (1000) is how many purged runs are listed at a time. Tests set [engine.purgedPage] lower.
const purgedPage = 1000

// purgedRun is a run that has rows left. The list is in the order of Purging, which identifies the
// purge.
type purgedRun struct{ Run, Purging []byte }

// listPurged returns the purged runs behind a purge, up to purgedPage of them.
func (s *engine) listPurged(ctx context.Context, after []byte) (page []purgedRun, err error) {
	behind := spanner.KeySet(spanner.AllKeys())
	if after != nil {
		behind = spanner.KeyRange{Start: spanner.Key{after}, End: spanner.Key{}, Kind: spanner.OpenClosed}
	}
	err = s.rows(ctx, spanner.StrongRead(), func(ctx context.Context, tx *spanner.ReadOnlyTransaction) *spanner.RowIterator {
		options := s.read("unfinished", s.purgedPage)
		options.Index = "RunsPurged"
		return tx.ReadWithOptions(ctx, "Runs", behind, []string{"Run", "Purging"}, options)
	}, func() { page = nil }, func(row *spanner.Row) (bool, error) {
		var run purgedRun
		err := row.ToStruct(&run)
		page = append(page, purgedRun{bytes.Clone(run.Run), bytes.Clone(run.Purging)})
		return true, err
	})
	return page, err
}
