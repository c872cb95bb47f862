package spanner

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"

	"cloud.google.com/go/spanner"
	"google.golang.org/api/iterator"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/rules"
)

// A purge may delete more rows than one commit takes. So it is decided by one mutation of
// the run's row: from then on there is no run, and scans and the feed leave out what has
// rows of it. The rows are deleted behind that, a thousand at a time, by the caller, by
// whoever creates the run anew, or by the next handle that is opened.

// purge marks the run.
func (e *edit) purge() {
	mark := make([]byte, 16)
	_, _ = rand.Read(mark) // never fails
	h := &e.head
	h.grant(h.rules().Ended(rules.Revoked))
	h.Purging = mark
	h.Created, h.Runnable = spanner.NullTime{}, spanner.NullTime{}
	h.VersionFloor = max(h.VersionFloor, h.VersionTop)
	k := e.g.key
	e.remove("Events", spanner.Key{k.hash, k.run, 0}) // the rows that tell readers of the run
	e.remove("Records", spanner.Key{k.hash, k.run, []byte{}})
}

// purging are the runs that are being purged: hardly ever there are any, and the index
// holds no others.
const purging = `SELECT p.Run FROM Runs@{FORCE_INDEX=RunsPurging} AS p WHERE p.Purging IS NOT NULL`

// clearAtOnce is how many events, and how many records, one transaction deletes: 20,000
// mutations at most, with nine for a record and eleven for an event. The limit is 80,000.
// Tests set [Store.clearAtOnce] lower.
const clearAtOnce = 1000

const (
	selectPurging    = `SELECT h.Purging FROM Runs AS h WHERE h.RunHash = @hash AND h.Run = @run`
	selectUnfinished = purging + ` LIMIT 1000`
)

// clearNow deletes a purged run's rows. The purge stands without it.
func (s *Store) clearNow(ctx context.Context, id runstore.RunID) {
	if err := s.clear(ctx, id); err != nil {
		s.opts.Logger.Warn("spanner: the rows of a purged run are still there, and are deleted when the store is opened next", "run", id, "error", err)
	}
}

// clear deletes a purged run's rows, if any are left.
func (s *Store) clear(ctx context.Context, id runstore.RunID) error {
	for more := true; more; {
		err := s.again(ctx, func(ctx context.Context) error {
			_, err := s.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) (err error) {
				more, err = s.clearSome(ctx, tx, keyOf(id))
				return err
			}, s.transaction("clear"))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) clearSome(ctx context.Context, tx *spanner.ReadWriteTransaction, k runKey) (more bool, err error) {
	params := map[string]any{"hash": k.hash, "run": k.run}
	var mark []byte
	err = s.one(tx.QueryWithOptions(ctx, spanner.Statement{SQL: selectPurging, Params: params}, s.query("purging")), func(row *spanner.Row) error {
		return row.Columns(&mark)
	})
	if err != nil || len(mark) == 0 { // another was quicker
		return false, err
	}
	var events []event
	var records []record
	all := spanner.Key{k.hash, k.run}.AsPrefix()
	err = tx.ReadWithOptions(ctx, "Events", all, []string{"Seq", "Committed", "Slot"}, s.read("clear", s.clearAtOnce)).Do(func(row *spanner.Row) error {
		events = append(events, event{})
		return row.ToStructLenient(&events[len(events)-1])
	})
	if err != nil {
		return false, err
	}
	err = tx.ReadWithOptions(ctx, "Records", all, []string{"Key", "UpdatedTime", "PlaceNames", "PlaceTimes"}, s.read("clear", s.clearAtOnce)).Do(func(row *spanner.Row) error {
		records = append(records, record{})
		return row.ToStructLenient(&records[len(records)-1])
	})
	if err != nil {
		return false, err
	}
	var m mutations
	more = len(events) == s.clearAtOnce || len(records) == s.clearAtOnce
	for _, e := range events {
		m.remove("Events", spanner.Key{k.hash, k.run, e.Seq.Int64})
		// Its place stays, without the event: the ranks of others count it.
		m.put("Feed", append(feedPlace(e.Committed.Time, e.Slot.Int64), nulls("Run", "Seq", "Time", "Token", "Kind", "Owner", "Data")...))
	}
	for _, r := range records {
		m.remove("Records", spanner.Key{k.hash, k.run, r.Key})
		for i, name := range r.PlaceNames {
			m.remove("Queue", spanner.Key{name, k.shard, r.PlaceTimes[i], r.UpdatedTime.Time, k.hash, k.run, r.Key})
		}
	}
	if !more {
		m.remove("Writes", spanner.Key{k.hash, k.run, true}.AsPrefix())
		m.list = append(m.list, spanner.Update("Runs", []string{"RunHash", "Run", "Purging"}, []any{k.hash, k.run, []byte(nil)}))
	}
	return more, tx.BufferWrite(m.list)
}

func feedPlace(committed any, slot int64) []column {
	return []column{{"Shard", feedShard(slot)}, {"Committed", committed}, {"Slot", slot}}
}

func nulls(names ...string) []column {
	all := make([]column, len(names))
	for i, n := range names {
		all[i] = column{n, nil}
	}
	return all
}

// finishPurges deletes what handles that are gone have left.
func (s *Store) finishPurges(ctx context.Context) error {
	for {
		n, err := s.finishSome(ctx)
		if err != nil || n < finishAtOnce {
			return err
		}
	}
}

const finishAtOnce = 1000

func (s *Store) finishSome(ctx context.Context) (int, error) {
	var runs [][]byte
	err := s.each(ctx, "unfinished", spanner.Statement{SQL: selectUnfinished}, func() { runs = nil }, func(row *spanner.Row) (bool, error) {
		var run []byte
		err := row.Columns(&run)
		runs = append(runs, bytes.Clone(run))
		return true, err
	})
	for _, run := range runs {
		if err == nil {
			err = s.clear(ctx, runstore.RunID(run))
		}
	}
	return len(runs), err
}

// one reads a statement's only row, if there is one.
func (s *Store) one(rows *spanner.RowIterator, read func(row *spanner.Row) error) error {
	defer rows.Stop()
	row, err := rows.Next()
	if errors.Is(err, iterator.Done) {
		return nil
	}
	if err != nil {
		return err
	}
	return read(row)
}
