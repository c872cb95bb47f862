package spanner

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"cloud.google.com/go/spanner"

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

// afterPurge deletes the rows of the runs that a call has purged. It returns no error, because the
// purge itself is committed already: the purger deletes what is left.
func (s *engine) afterPurge(ctx context.Context, ids []runstore.RunID) {
	for _, id := range ids {
		if err := s.deletePurged(ctx, id, false); err != nil {
			s.opts.Logger.Warn("spanner: the rows of a purged run are still there, and are deleted in the background", "run", id, "error", err)
		}
	}
}

// deletePurged deletes a purged run's rows, if any are left. If yields is set, it returns
// errContended after a transaction that was aborted.
func (s *engine) deletePurged(ctx context.Context, id runstore.RunID, yields bool) error {
	c := purgeProgress{s: s, key: keyOf(id), more: true}
	for c.more {
		var next purgeProgress
		err := s.retry(ctx, func(ctx context.Context) error {
			begun := false
			return s.writeOnce(ctx, "clear", func(ctx context.Context, tx *spanner.ReadWriteTransaction) ([]*spanner.Mutation, error) {
				if yields && begun {
					return nil, errContended
				}
				begun, next = true, c
				return next.deleteSome(ctx, tx)
			})
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
	more bool   // whether rows may be left
}

// deleteSome returns the mutations that delete up to purgeBatch events and records, in one
// transaction. It sets c.more, and returns none if another handle has finished the purge.
func (c *purgeProgress) deleteSome(ctx context.Context, tx *spanner.ReadWriteTransaction) ([]*spanner.Mutation, error) {
	var heads []head
	k, most := c.key, c.s.purgeBatch
	rows := tx.ReadWithOptions(ctx, "Runs", spanner.Key{k.hash, k.run}, []string{"Purging", "LastSeq", "CallerWrites"}, c.s.read("purging", 0))
	err := spanner.SelectAll(rows, &heads, spanner.WithLenient())
	if c.more = err == nil && len(heads) > 0 && len(heads[0].Purging) > 0; !c.more {
		return nil, err
	}
	h := heads[0]
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
		return nil, err
	}
	for _, r := range records {
		m.remove("Records", spanner.Key{k.hash, k.run, r.Key})
		for i, name := range r.PlaceNames {
			m.remove("Queue", spanner.Key{name, k.shard, r.PlaceTimes[i], r.UpdatedTime.Time, k.hash, k.run, r.Key})
		}
		c.last = r.Key
	}
	c.more = h.LastSeq > 0 || len(records) == most
	if !c.more {
		if err := c.endResults(ctx, tx, &m); err != nil {
			return nil, err
		}
		h.Purging = nil
		// Count all callers' results as evicted ([request.resultEvicted]). A commit whose reply was
		// lost before the purge is then not applied to the run that is created next.
		h.CallerWrites += c.s.ring
	}
	return append(m.list, spanner.Update("Runs", []string{"RunHash", "Run", "LastSeq", "Purging", "CallerWrites"}, []any{k.hash, k.run, h.LastSeq, h.Purging, h.CallerWrites})), nil
}

// records reads the next records to delete.
func (c *purgeProgress) records(ctx context.Context, tx *spanner.ReadWriteTransaction, most int) (records []record, err error) {
	rows := spanner.KeyRange{Start: spanner.Key{c.key.hash, c.key.run, stored(c.last)}, End: spanner.Key{c.key.hash, c.key.run}, Kind: spanner.OpenClosed}
	columns := []string{"Key", "UpdatedTime", "PlaceNames", "PlaceTimes"}
	err = spanner.SelectAll(tx.ReadWithOptions(ctx, "Records", rows, columns, c.s.read("clear", most)), &records, spanner.WithLenient())
	return records, err
}

// endResults deletes the results under callers' ids and marks the others as ended. The latter are
// kept for calls whose commit had an ambiguous outcome, the purge among them. No call lasts longer
// than an hour ([Options.RetryTimeout]); the table's row deletion policy deletes the rows after a
// day.
func (c *purgeProgress) endResults(ctx context.Context, tx *spanner.ReadWriteTransaction, m *mutations) error {
	m.remove("Writes", spanner.Key{c.key.hash, c.key.run, true}.AsPrefix())
	var others []struct {
		Slot int64
		Time time.Time
	}
	rows := tx.ReadWithOptions(ctx, "Writes", spanner.Key{c.key.hash, c.key.run, false}.AsPrefix(), []string{"Slot", "Time"}, c.s.read("clear", 0))
	err := spanner.SelectAll(rows, &others)
	for _, r := range others {
		m.add(spanner.Update("Writes", []string{"RunHash", "Run", "Callers", "Slot", "Ended"}, []any{c.key.hash, c.key.run, false, r.Slot, r.Time}), nil)
	}
	return err
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
				s.purger.start()
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
func (s *engine) listPurged(ctx context.Context, after []byte) ([]purgedRun, error) {
	behind := spanner.KeySet(spanner.AllKeys())
	if after != nil {
		behind = spanner.KeyRange{Start: spanner.Key{after}, End: spanner.Key{}, Kind: spanner.OpenClosed}
	}
	options := s.read("unfinished", s.purgedPage)
	options.Index = "RunsPurged"
	return selectAll[purgedRun](ctx, s, byKey("Runs", behind, []string{"Run", "Purging"}, options))
}
